"""How long advice takes: a portrait of 10,000 requests with text, and a trace replayed on the simulator.

    python scripts/advise_times.py spec_bench.jsonl mooncake_conversation_2000.jsonl

Requests of the portrait are Spec-Bench's questions one after another, each answered by the beginning of the one after
it: texts of a true length, in which drafters find something. The trace comes at its own times to an 8B model on one
H200.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from threefold.advise.commands import open_tokenizer
from threefold.advise.curve_executor import Machine
from threefold.advise.log import read_logs
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import NO_REPLAY, replay
from threefold.advise.simulate import Settings, Simulation
from threefold.advise.trace import Encoder, to_trace
from threefold.advise.traffic import to_traffic
from threefold.config import EngineConfig
from threefold.cost import CostCurve

NUM_REQUESTS = 10_000
ANSWER_CHARACTERS = 800
CARD = CostCurve(
    [(1, 4.2), (16, 4.5), (64, 5.0), (128, 5.6), (256, 8.6), (512, 12.4), (1024, 23.5), (2048, 43), (8192, 180)],
    kv_token_ms=2.7e-5,
)
"""Qwen3-8B in bf16, ms a step by its tokens."""
CARD_BLOCKS = 49_000


def main() -> None:
    """Print both times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec_bench", type=Path)
    parser.add_argument("trace", type=Path)
    asked = parser.parse_args()
    encoder = Encoder(open_tokenizer(EngineConfig()))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_text("\n".join(requests(asked.spec_bench)), encoding="utf-8")
        began = time.perf_counter()
        entries = read_logs([log])
        trace = to_trace(entries, encoder)
        draw_portrait(entries, trace, replay(trace))
        print(f"portrait of {len(trace):,} requests: {time.perf_counter() - began:.1f} s")
    traffic = to_traffic(to_trace(read_logs([asked.trace]), encoder), NO_REPLAY, None)
    began = time.perf_counter()
    result = Simulation(Machine(CARD, CARD_BLOCKS), Settings(256, 8192)).run(traffic)
    seconds = time.perf_counter() - began
    print(f"replay of {len(traffic):,} requests: {seconds:.1f} s for {result.duration_s:,.0f} s of the card's")


def requests(spec_bench: Path) -> list[str]:
    """Lines of a log."""
    lines = spec_bench.read_text(encoding="utf-8").splitlines()
    questions = [str(json.loads(line)["turns"][0]) for line in lines]
    return [
        json.dumps(
            {
                "prompt": questions[place % len(questions)],
                "output": questions[(place + 1) % len(questions)][:ANSWER_CHARACTERS],
            }
        )
        for place in range(NUM_REQUESTS)
    ]


if __name__ == "__main__":
    main()
