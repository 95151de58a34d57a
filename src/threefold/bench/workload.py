"""Prompts to send: reads JSON lines and picks from them reproducibly. Knows nothing of servers.

Two forms, one object a line: Spec-Bench's {"question_id", "category", "turns": [...]}, of which the first turn is sent,
and {"prompt": "...", "output_tokens": 128?}. Blank lines are skipped; a bad line is an error with its number.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from threefold.errors import ConfigError

# Spec-Bench's categories; `mixed` is extract and prose, `short` the ten whose prompts stay under a few hundred tokens.
GROUPS: dict[str, tuple[str, ...]] = {
    "extract": ("coding", "extraction", "summarization", "rag"),
    "prose": ("writing", "roleplay", "humanities", "stem", "qa"),
    "mixed": ("coding", "extraction", "summarization", "rag", "writing", "roleplay", "humanities", "stem", "qa"),
    "short": (
        "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "math_reasoning",
        "qa",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to ask."""

    text: str
    """What the user says."""
    category: str = ""
    """The data set's category; "" = none."""
    max_tokens: int | None = None
    """Tokens wanted by the data set; None = as the command says."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a benchmark sends, in order, and where it came from."""

    prompts: tuple[Prompt, ...]
    """In the order they are sent; repeated from the start when the data set has fewer."""
    num_distinct: int
    """Different prompts among them."""
    dataset: str
    """File name."""
    dataset_sha256: str
    """Of the file's bytes."""
    group: str
    """As asked."""


def load_workload(path: Path, *, group: str = "all", num_prompts: int | None = None, seed: int = 0) -> Workload:
    """Read a data set and pick prompts from a group of it.

    Args:
        path: JSON lines.
        group: all, a group's name, or categories and groups joined by commas.
        num_prompts: how many to send; None = each one once.
        seed: of the shuffle.

    Raises:
        ConfigError: the file cannot be read, a line is bad, or nothing is in the group.
    """
    content = _read(path)
    chosen = _in_group(_parse(content, path.name), group, path.name)
    ordered = pick(chosen, num_prompts if num_prompts is not None else len(chosen), seed)
    return Workload(
        prompts=tuple(ordered),
        num_distinct=min(len(chosen), len(ordered)),
        dataset=path.name,
        dataset_sha256=hashlib.sha256(content).hexdigest(),
        group=group,
    )


def pick(prompts: Sequence[Prompt], num_prompts: int, seed: int) -> list[Prompt]:
    """Shuffle within each category, deal the categories round-robin, repeat from the start when there are too few.

    The first n of a longer pick are the pick of n, so that runs of different length share their beginning.
    """
    generator = random.Random(seed)  # noqa: S311 a shuffle, no secret
    piles: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        piles.setdefault(prompt.category, []).append(prompt)
    for name in sorted(piles):
        generator.shuffle(piles[name])
    dealt: list[Prompt] = []
    names = sorted(piles)
    for depth in range(max(map(len, piles.values()))):
        dealt += [piles[name][depth] for name in names if depth < len(piles[name])]
    return [dealt[index % len(dealt)] for index in range(num_prompts)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--dataset {path}: cannot read it: {error.strerror}") from None


def _parse(content: bytes, name: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            prompts.append(_parse_line(line, f"{name}, line {number}"))
    if not prompts:
        raise ConfigError(f"{name} holds no prompt")
    return prompts


def _parse_line(line: bytes, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: is no UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: is no JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ConfigError(f"{where}: is nested too deeply") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: wants an object with 'turns' or 'prompt', got a {type(entry).__name__}")
    turns = entry.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else entry.get("prompt")
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{where}: wants 'turns' (a list of texts) or 'prompt' (a text that is not empty)")
    max_tokens = entry.get("output_tokens")
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise ConfigError(f"{where}: output_tokens must be a whole number of at least 1, got {max_tokens}")
    return Prompt(text=text, category=str(entry.get("category", "")), max_tokens=max_tokens)


def _in_group(prompts: list[Prompt], group: str, name: str) -> list[Prompt]:
    if group == "all":
        return prompts
    known = sorted({prompt.category for prompt in prompts if prompt.category})
    wanted: set[str] = set()
    for part in group.split(","):
        if part not in GROUPS and part not in known:
            hint = f"categories {', '.join(known)}" if known else "no categories"
            raise ConfigError(f"--group {part}: {name} has {hint}; groups: all, {', '.join(GROUPS)}")
        wanted.update(GROUPS.get(part, (part,)))
    chosen = [prompt for prompt in prompts if prompt.category in wanted]
    if not chosen:
        raise ConfigError(f"--group {group}: {name} has no prompt of it")
    return chosen
