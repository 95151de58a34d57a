"""Prompts to send: reads a data set and picks from it reproducibly. Knows nothing of servers.

dataset_file.py has the files, forms.py what an entry of one may look like; a bad entry is an error with its number. A
trace keeps its order and its moments; everything else is shuffled.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from threefold.bench.dataset_file import entries, read_file
from threefold.bench.forms import Sizes, parse_entry
from threefold.bench.load_options import LoadOptions
from threefold.bench.prompt import MadeUp, Prompt
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

DEFAULT_RANDOM_PROMPTS = 100


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
    num_skipped: int = 0
    """Entries of the file that ask nothing."""
    remarks: tuple[str, ...] = ()
    """What a reader of the figures must know about these prompts."""

    @property
    def is_trace(self) -> bool:
        """True when every prompt has a moment at which it is sent."""
        return bool(self.prompts) and self.prompts[0].at_s is not None


def make_workload(load: LoadOptions) -> Workload:
    """The workload that the flags ask for.

    Raises:
        ConfigError: no data set is named, or it cannot be read.
    """
    if load.dataset_name == "random":
        return _random_workload(load)
    if load.dataset is None:
        raise ConfigError('--dataset FILE is needed: JSON lines such as {"prompt": "…"}, Spec-Bench\'s, a trace …')
    workload = load_workload(
        Path(load.dataset),
        group=load.group,
        num_prompts=load.num_prompts,
        seed=load.shuffle_seed,
        form=load.dataset_name,
        sizes=Sizes(load.trace_block_tokens, load.length_scale, load.shuffle_seed),
    )
    if load.output_len is None:
        return workload
    return replace(workload, prompts=tuple(replace(each, max_tokens=load.output_len) for each in workload.prompts))


def load_workload(
    path: Path,
    *,
    group: str = "all",
    num_prompts: int | None = None,
    seed: int = 0,
    form: str = "auto",
    sizes: Sizes | None = None,
) -> Workload:
    """Read a data set and pick prompts from a group of it.

    Args:
        path: JSON lines or a JSON list, gzipped or not.
        group: all, a group's name, or categories and groups joined by commas.
        num_prompts: how many to send; None = each one once.
        seed: of the shuffle.
        form: one of forms.FORMS, trace, or auto.
        sizes: how a trace's lengths are read.

    Raises:
        ConfigError: the file cannot be read, a line is bad, or nothing is in the group.
    """
    content = read_file(path)
    parsed, num_skipped = _parse(content, path.name, form, sizes or Sizes())
    chosen = _in_group(parsed, group, path.name)
    num_timed = sum(prompt.at_s is not None for prompt in chosen)
    if num_timed not in (0, len(chosen)):
        raise ConfigError(f"{path.name}: {num_timed} of {len(chosen)} entries have a timestamp; a trace wants them all")
    if num_timed:
        ordered, remarks = _in_time(chosen, num_prompts, path.name), _trace_remarks(chosen)
    else:
        ordered, remarks = pick(chosen, num_prompts if num_prompts is not None else len(chosen), seed), ()
    return Workload(
        prompts=tuple(ordered),
        num_distinct=min(len(chosen), len(ordered)),
        dataset=path.name,
        dataset_sha256=hashlib.sha256(content).hexdigest(),
        group=group,
        num_skipped=num_skipped,
        remarks=remarks,
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


def _in_time(prompts: Sequence[Prompt], num_prompts: int | None, name: str) -> list[Prompt]:
    """A trace's first requests, its clock starting with the first of them."""
    if num_prompts is not None and num_prompts > len(prompts):
        raise ConfigError(
            f"--num-prompts {num_prompts}: {name} holds {len(prompts)} requests, and a trace is not repeated"
        )
    ordered = sorted(prompts, key=lambda prompt: prompt.at_s or 0.0)[:num_prompts]
    origin = ordered[0].at_s or 0.0
    return [replace(prompt, at_s=(prompt.at_s or 0.0) - origin) for prompt in ordered]


def _trace_remarks(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    if all(prompt.made_up is None for prompt in prompts):
        return ()
    return ("prompts are made up to the trace's lengths and shared prefixes: they say nothing of drafts",)


def _random_workload(load: LoadOptions) -> Workload:
    generator = random.Random(load.shuffle_seed)  # noqa: S311 lengths, no secret

    def around(length: int) -> int:
        low, high = length * (1 - load.random_range_ratio), length * (1 + load.random_range_ratio)
        return max(1, round(generator.uniform(low, high)))

    prompts = []
    for index in range(load.num_prompts or DEFAULT_RANDOM_PROMPTS):
        shared = ((0, load.random_prefix_len),) if load.random_prefix_len else ()
        words = MadeUp((*shared, (index + 1, around(load.random_input_len))), load.shuffle_seed)
        prompts.append(Prompt("", max_tokens=around(load.output_len or load.max_tokens), made_up=words))
    remark = "random words: drafts find nothing to repeat in them, so these figures say nothing of speculation"
    return Workload(tuple(prompts), len(prompts), "random", "", "all", remarks=(remark,))


def _parse(content: bytes, name: str, form: str, sizes: Sizes) -> tuple[list[Prompt], int]:
    """The prompts of a file, and how many entries ask nothing."""
    prompts: list[Prompt] = []
    num_skipped = 0
    for index, (where, entry) in enumerate(entries(content, name)):
        try:
            prompt = parse_entry(entry, form, sizes, index)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        if prompt is None:
            num_skipped += 1
        else:
            prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{name} holds no prompt")
    return prompts, num_skipped


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
