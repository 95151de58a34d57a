"""The line that operators read: throughput and load since the last one, worded as vLLM words it; silent when idle."""

from __future__ import annotations

import asyncio
import logging

from threefold.errors import EngineDeadError
from threefold.metrics import EngineStats, SloStats
from threefold.server.call import Client

_logger = logging.getLogger("threefold.stats")


async def log_stats(client: Client, interval_s: float) -> None:
    """Log every interval_s seconds until cancelled or the engine is gone."""
    try:
        before = await client.stats()
        while True:
            await asyncio.sleep(interval_s)
            now = await client.stats()
            for line in stats_lines(before, now, interval_s):
                _logger.info("%s", line)
            before = now
    except EngineDeadError:
        return


def stats_lines(before: EngineStats, now: EngineStats, seconds: float) -> list[str]:
    """The lines for what happened between two snapshots; none when nothing did and nothing runs."""
    if before.num_steps == now.num_steps and not now.num_running and not now.num_waiting:
        return []
    prompt_rate = (now.prompt_tokens_computed - before.prompt_tokens_computed) / seconds
    rate = (now.generated_tokens - before.generated_tokens) / seconds
    lines = [
        f"Avg prompt throughput: {prompt_rate:.1f} tokens/s, Avg generation throughput: {rate:.1f} tokens/s, "
        f"Running: {now.num_running} reqs, Waiting: {now.num_waiting} reqs, "
        f"KV cache usage: {_percent(now.num_held_blocks, now.num_blocks)}, "
        f"Prefix cache hit rate: {_percent(now.prefix_hits, now.prefix_queries)}"
    ]
    num_drafts = now.num_drafts - before.num_drafts
    if num_drafts:
        lines.append(_speculation_line(before, now, num_drafts, seconds))
    if now.slo is not None and before.slo is not None:
        lines.append(_slo_line(now.slo, now.slo.num_shed - before.slo.num_shed))
    return lines


def _slo_line(slo: SloStats, num_shed: int) -> str:
    attained = (
        ("TTFT", slo.ttft_target_ms, slo.ttft_attained),
        ("TPOT", slo.tpot_target_ms, slo.tpot_attained),
    )
    shares = [f"{name} {target:g} ms kept by {share:.1%}" for name, target, share in attained if target is not None]
    return (
        f"SLO: {', '.join(shares)}, Running limit: {slo.running_limit or '-'}, "
        f"Predicted TTFT: {slo.predicted_ttft_ms:.0f} ms, Refused: {num_shed} reqs"
    )


def _speculation_line(before: EngineStats, now: EngineStats, num_drafts: int, seconds: float) -> str:
    accepted = now.num_accepted_tokens - before.num_accepted_tokens
    drafted = now.num_draft_tokens - before.num_draft_tokens
    earlier = before.accepted_per_position + [0] * len(now.accepted_per_position)
    positions = zip(now.accepted_per_position, earlier, strict=False)
    rates = ", ".join(f"{(count - old) / num_drafts:.3f}" for count, old in positions)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / num_drafts:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {_percent(accepted, drafted)}, "
        f"Gain: {now.speculation_gain_ratio:.2f} ± {now.speculation_gain_error:.2f}{_by_drafter(now)}"
    )


def _by_drafter(now: EngineStats) -> str:
    """What each drafter earns, where there is more than one."""
    if len(now.gain_by) < 2:
        return ""
    return " (" + ", ".join(f"{drafter} {ratio:.2f}" for drafter, ratio in sorted(now.gain_by.items())) + ")"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f}%"
