"""How steps run on a card: the path of the model, and that of a draft model, their graphs captured.

Knows nothing about requests or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from threefold.engine.draft_pair import LoadedDraft
from threefold.engine.fit import graph_limits
from threefold.engine.opened import Opened
from threefold.layers.attention import KVCache
from threefold.models.decoder import Decoder
from threefold.runner.behind import GraphBehind
from threefold.runner.graphs import Capture, CudaCapture, GraphReport, NoCapture, make_cuda_mark
from threefold.runner.memory import MemoryPlan
from threefold.runner.path import StepPath, card_path
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows, table_width
from threefold.runner.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class CardSteps:
    """How steps run on a card; None of it on a CPU."""

    path: StepPath
    graphs: GraphReport
    max_wanted_beside_prompts: int
    """Tokens to draw of the steps with prompts that have a graph."""
    max_prompt_tokens: int
    """Of these steps, as measured."""


def card_steps(
    opened: Opened, decoder: Decoder, kv: list[KVCache], plan: MemoryPlan, max_prompt_tokens: int
) -> CardSteps | None:
    """A model's steps on a card, its graphs captured unless none are wanted; None on a CPU."""
    if not opened.device.is_gpu:
        return None
    device = opened.device.torch_device
    limits = graph_limits(opened, decoder.spec, plan.max_num_seqs, plan.max_model_len, max_prompt_tokens)
    max_draft = opened.config.speculation.max_draft_tokens
    path, graphs = card_path(
        ModelRunner(decoder, kv),
        limits,
        max_tokens=opened.limits.max_num_batched_tokens,
        max_blocks=table_width(plan.max_model_len, opened.config.cache.block_size, max_draft),
        device=device,
        capture=_capture(opened),
    )
    return CardSteps(path, graphs, min(limits.max_rows, limits.sizes[-1]), max_prompt_tokens)


def draft_on_card(opened: Opened, draft: LoadedDraft, plan: MemoryPlan, target: CardSteps) -> LoadedDraft:
    """The draft model with graphs of its own, among them those behind the target's steps."""
    steps = card_steps(opened, draft.decoder, draft.kv.caches, plan, target.max_prompt_tokens)
    assert steps is not None, "a card has graphs"
    rounds = GraphRounds(
        ModelRunner(draft.decoder, draft.kv.caches),
        steps.path.device_rows,
        graph_limits(opened, draft.decoder.spec, plan.max_num_seqs, plan.max_model_len, target.max_prompt_tokens),
        block_size=draft.block_size,
        max_rounds=opened.config.speculation.max_draft_tokens,
    )
    behind = GraphBehind(
        rounds,
        target.path.device_rows,
        vocab_size=opened.spec.vocab_size,
        max_draft=opened.config.speculation.max_draft_tokens,
        make_mark=make_cuda_mark,
    )
    for one in (rounds, behind):
        one.capture(_capture(opened))
    return replace(draft, forward=steps.path.forward, rounds=rounds, behind=behind)


def _capture(opened: Opened) -> Capture:
    return NoCapture() if opened.config.device.enforce_eager else CudaCapture(opened.device.torch_device)


def make_rows(opened: Opened, plan: MemoryPlan) -> Rows:
    """Rows for all that may run, each as long as it may get."""
    max_draft = opened.config.speculation.max_draft_tokens
    return Rows(plan.max_num_seqs, plan.max_model_len, opened.config.cache.block_size, max_draft)
