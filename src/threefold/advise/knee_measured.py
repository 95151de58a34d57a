"""The knee by measurement: looked for around a predicted one, or by a sweep over every size.

The sweep takes long and says how far off the other two are. Knows engines by a protocol only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from threefold.advise.knee import KneePoint, find_knee, knee_sizes, point_of, steps_apart
from threefold.advise.levers import Variant
from threefold.advise.result import LoadResult
from threefold.advise.verify import Verifier


def around(
    predicted: int, verifier: Verifier, base: Variant, targets: Mapping[str, float], say: Callable[[str], None]
) -> list[KneePoint]:
    """Half, once and twice the predicted knee, and on in a direction as long as the knee lies at that end."""
    limit = base.settings.max_num_seqs
    known: dict[int, KneePoint] = {}
    wanted = {max(predicted // 2, 1), predicted, min(2 * predicted, limit)}
    while wanted - known.keys():
        for size in sorted(wanted - known.keys()):
            known[size] = point_of(size, _measured(verifier, base, size), targets)
            say(f"max_num_seqs {size}: {known[size].output_rate:.0f} tokens/s, TPOT {known[size].tpot_p90_ms:.1f} ms")
        knee, _ = find_knee(_ordered(known))
        if knee is None or knee.max_num_seqs == min(known):
            wanted.add(max(min(known) // 2, 1))
        if knee is not None and knee.max_num_seqs == max(known):
            wanted.add(min(2 * max(known), limit))
    return _ordered(known)


def sweep(
    verifier: Verifier, base: Variant, targets: Mapping[str, float], rounds: int, say: Callable[[str], None]
) -> list[KneePoint]:
    """Every size, there and back, so many times."""
    results: dict[int, LoadResult] = {}
    sizes = knee_sizes(base.settings.max_num_seqs)
    for turn in range(rounds):
        for size in sizes if turn % 2 == 0 else reversed(sizes):
            result = _measured(verifier, base, size)
            say(f"sweep, max_num_seqs {size}: {result.output_rate:.0f} tokens/s")
            if size in results:
                results[size].add(result)
            else:
                results[size] = result
    return [point_of(size, results[size], targets) for size in sizes]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep, and where the knee lies by whom; None = the targets break at every size."""

    points: list[KneePoint]
    knee: int | None
    tuned: int | None
    """What looking around the prediction found."""
    predicted: int | None
    """What the advice said."""

    @classmethod
    def of(cls, points: list[KneePoint], tuned: KneePoint | None, predicted: KneePoint | None) -> Sweep:
        """From the points of a sweep, and the knees that were found without it."""
        knees = (find_knee(points)[0], tuned, predicted)
        return cls(points, *(None if knee is None else knee.max_num_seqs for knee in knees))

    def lines(self) -> list[str]:
        """In words."""
        lines = [f"the knee by a sweep over all {len(self.points)} sizes: max_num_seqs {self.knee or 'none'}"]
        for who, size in (("tune", self.tuned), ("the advice", self.predicted)):
            lines.append(f"{who} found {size or 'none'}: {self._distance(size)}")
        return lines

    def _distance(self, size: int | None) -> str:
        if size is None or self.knee is None:
            return "the same" if size == self.knee else "only one of the two meets the targets anywhere"
        return f"{steps_apart(size, self.knee):g} steps apart"


def _measured(verifier: Verifier, base: Variant, size: int) -> LoadResult:
    return verifier.measured(replace(base, settings=replace(base.settings, max_num_seqs=size)), size)


def _ordered(known: Mapping[int, KneePoint]) -> list[KneePoint]:
    return [known[size] for size in sorted(known)]
