"""The ladder's rungs on a loaded engine, and what the demonstration asks when nobody brings a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from threefold.advise.cores import OFF, core_with
from threefold.advise.drive import Ask, Drive
from threefold.advise.ladder import RUNGS, Load
from threefold.advise.result import LoadResult
from threefold.advise.simulate import Settings
from threefold.advise.trace import Encoder
from threefold.draft.policy import DraftPolicy
from threefold.engine.loaded import LoadedEngine

ONE, STATIC, CONTINUOUS, PREFIX, SPECULATION = RUNGS
_HOUSE_RULES = (
    "You work at the desk of a small library. Answer in plain words, stay with what is given, never invent a title, a "
    "name or a date. When a list is asked, give one item a line. When the question cannot be answered from what is "
    "given, say so in one sentence. Opening hours are nine to six on weekdays and ten to two on Saturdays; on Sundays "
    "and public holidays the library is closed. Books may be kept for four weeks and extended twice unless somebody "
    "waits for them. "
)
_TITLES = (
    "harbour lights", "the salt road", "a garden in march", "nine bridges", "the clockmaker's map", "low water",
    "letters to a lighthouse", "the glass orchard", "north of the river", "an atlas of small islands",
    "the winter ferry", "stone and thread", "the last tram", "a field guide to clouds", "the paper kite",
    "seven quiet rooms",
)  # fmt: skip
_SUBJECTS = (
    "a lighthouse keeper who collects clocks", "a market town on the first day of snow", "two gardeners and one pear",
    "a ferry that is always late", "a library at night", "a bridge that remembers", "a letter found in a wall",
    "an orchestra that lost its drum", "a baker before dawn", "a tram on its last journey", "a map with one mistake",
    "a kite and a storm", "an island with no harbour", "a clockmaker's apprentice", "a winter without wind",
    "a cat that owns a bookshop",
)  # fmt: skip


_LENGTHS = (0.4, 1.6, 0.7, 1.3)
"""Lengths of answers over their mean."""


def demonstration(encoder: Encoder, max_tokens: int) -> list[Load]:
    """Copying from a given list behind shared instructions, and stories that share nothing; max_tokens on average."""
    copying = [_chat(encoder, _length(max_tokens, at), _copy_task(at)) for at in range(4 * len(_TITLES))]
    stories = [
        _chat(encoder, _length(max_tokens, index), f"Story number {index + 1}: write a short story about {subject}.")
        for index, subject in enumerate(_SUBJECTS * 4)
    ]
    return [Load("copying, shared prefix", copying), Load("stories", stories)]


def _length(max_tokens: int, index: int) -> int:
    """Answers differ in length, as they do in life; that is what static batches suffer from."""
    return max(round(max_tokens * _LENGTHS[index % len(_LENGTHS)]), 2)


def _copy_task(index: int) -> str:
    start = index % len(_TITLES)
    titles = [*_TITLES[start:], *_TITLES[:start]][:12]
    shelf = "\n".join(f"- {title}, shelf {17 + 3 * place}, copy {place + 1}" for place, title in enumerate(titles))
    return (
        f"{_HOUSE_RULES}\nThe shelf list of room {index + 1}:\n{shelf}\n\nRepeat the shelf list line by line, "
        "exactly as it is given."
    )


def _chat(encoder: Encoder, max_tokens: int, text: str) -> Ask:
    return Ask(encoder.chat([{"role": "user", "content": text}]), max_tokens)


class EngineRungs:
    """Rungs on one loaded model; the engine's own limits are the ceiling."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._loaded = loaded
        info = loaded.info()
        limits = loaded.opened.limits
        self._settings = Settings(info.max_num_seqs, limits.max_num_batched_tokens, has_prefix_cache=False)
        self._speculation = loaded.opened.config.speculation
        self._policy: DraftPolicy = loaded.policy(self._speculation)[0]

    @property
    def most_users(self) -> int:
        """Requests that can run at once."""
        return self._settings.max_num_seqs

    def run(self, rung: str, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests on a fresh engine."""
        settings = self._settings
        if rung == ONE:
            settings = replace(settings, max_num_seqs=1)
        if rung in (PREFIX, SPECULATION):
            settings = replace(settings, has_prefix_cache=True)
        is_drafting = rung == SPECULATION
        core = core_with(
            self._loaded, settings, self._speculation if is_drafting else OFF, self._policy if is_drafting else None
        )
        return Drive(core).run(asks, users, is_static=rung == STATIC)
