"""Loads that the advice was not made on, as one log whose kinds `threefold advise --verify --by-kind` measures apart.

    python scripts/held_out.py spec_bench.jsonl HumanEval.jsonl.gz > held_out.jsonl

From Spec-Bench the categories that no threshold was set on, from HumanEval its tasks, once as they are and once behind
three that are solved: what a prefix cache is for. Prompts only: the model that is measured answers them (`--answer`).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

CATEGORIES = ("math_reasoning", "summarization", "rag", "translation")
NUM_SOLVED = 3


def main() -> None:
    """Print the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec_bench", type=Path)
    parser.add_argument("humaneval", type=Path)
    parser.add_argument("--num-prompts", type=int, default=48, help="of each kind")
    asked = parser.parse_args()
    for kind, prompt in loads(lines(asked.spec_bench), lines(asked.humaneval), asked.num_prompts):
        print(json.dumps({"category": kind, "turns": [prompt]}))


def lines(path: Path) -> list[dict[str, object]]:
    """The objects of a file of JSON lines, packed or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def loads(
    spec_bench: list[dict[str, object]], humaneval: list[dict[str, object]], num_prompts: int
) -> Iterator[tuple[str, str]]:
    """(kind, prompt) of every request."""
    for category in CATEGORIES:
        prompts = [turns[0] for one in spec_bench if one["category"] == category and (turns := _turns(one))]
        for prompt in prompts[:num_prompts]:
            yield category, prompt
    solved = "\n\n".join(f"{one['prompt']}{one['canonical_solution']}" for one in humaneval[:NUM_SOLVED])
    tasks = [f"Complete this function:\n\n{one['prompt']}" for one in humaneval[NUM_SOLVED:]]
    for task in tasks[:num_prompts]:
        yield "code", task
    for task in tasks[-num_prompts:]:
        yield "code behind examples", f"Functions that were completed:\n\n{solved}\n\n{task}"


def _turns(one: dict[str, object]) -> list[str]:
    turns = one["turns"]
    return [str(turn) for turn in turns] if isinstance(turns, list) else []


if __name__ == "__main__":
    main()
