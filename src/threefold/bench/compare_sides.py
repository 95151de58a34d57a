"""`bench compare`: the same load on several servers in turn, A B A B, and an honest word on what differs.

A side is a YAML file: the flags of `threefold serve`, started here as a child process, or `url:` of a server that runs.
Unless told otherwise each run starts its server anew and ends it, so that sides never share the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from threefold.bench.child import child_server
from threefold.bench.compare import compare, interleave
from threefold.bench.compare_options import CompareOptions
from threefold.bench.serve import last_words
from threefold.bench.target_options import TargetOptions
from threefold.errors import ConfigError, ThreefoldError
from threefold.flags.configs import engine_config, parse_command, server_config
from threefold.flags.flag import Flag
from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS
from threefold.flags.values import text

FIGURES = (
    "output_throughput", "request_throughput", "request_goodput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms",
    "p99_tpot_ms", "median_e2el_ms",
)  # fmt: skip
NUM_WARMUPS = 4
_URL_FLAG = Flag("url", "side.url", text, "address of a server that runs", metavar="URL")


Send = Callable[[TargetOptions], dict[str, Any]]


class Side(NamedTuple):
    """One of the servers."""

    name: str
    """The file's name."""
    url: str | None
    """Where it runs already; None = it is started here."""
    command: tuple[str, ...]
    """Starts it."""
    api_key: str | None
    """Of its config."""


class _EndedError(ThreefoldError):
    """A run did not come to its end; the message says why."""


def read_side(path: Path) -> Side:
    """Read a side's YAML file and check its flags.

    Raises:
        ConfigError: the file or a flag in it cannot hold.
    """
    parsed = parse_command(["--config", str(path)], (*SERVER_FLAGS, *ENGINE_FLAGS, _URL_FLAG))
    server = server_config(parsed)
    urls = [str(each.value) for each in parsed.assignments if each.flag is _URL_FLAG]
    names = sorted({each.flag.name for each in parsed.assignments} - {"config", "url", "api-key"})
    if urls and names:
        raise ConfigError(f"{path.name}: url names a server that runs already, so --{names[0]} would change nothing")
    if server.uds is not None:
        raise ConfigError(f"{path.name}: --uds: a load goes over TCP")
    engine_config(parsed)
    command = (sys.executable, "-m", "threefold", "serve", "--config", str(path), "--host", "127.0.0.1", "--port", "0")
    return Side(path.stem, urls[-1] if urls else None, command, next(iter(server.api_keys), None))


def read_sides(paths: Sequence[str]) -> list[Side]:
    """Read every side; sides whose files have one name are told apart by their paths.

    Raises:
        ConfigError: fewer than two, or one cannot be read.
    """
    if len(paths) < 2:
        raise ConfigError(f"compare wants two or more YAML files, got {len(paths)}: bench compare A.yaml B.yaml")
    sides = [read_side(Path(path)) for path in paths]
    if len({side.name for side in sides}) == len(sides):
        return sides
    return [side._replace(name=f"{at}:{path}") for at, (side, path) in enumerate(zip(sides, paths, strict=True), 1)]


def compare_sides(
    sides: Sequence[Side], send: Send, target: TargetOptions, asked: CompareOptions, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the sides in turn; what ends it early is in the result, with the rounds that were whole.

    Args:
        sides: who is compared, each with the first.
        send: puts the load on one server and returns its figures.
        target: what all servers have in common.
        asked: how often, and how servers are started.
        say: takes a line for each run.

    Raises:
        ConfigError: the load cannot be sent as asked.
    """
    runs: list[list[dict[str, Any]]] = [[] for _ in sides]
    ended = ""
    with ExitStack() as stack:
        try:
            kept = [_kept(side, asked, stack) for side in sides]
            pairs = zip(kept, runs, strict=True)
            interleave([partial(_turn, side, into, send, target, asked, say) for side, into in pairs], asked.rounds)
        except ConfigError:
            raise
        except ThreefoldError as error:
            ended = str(error)
        except KeyboardInterrupt:
            ended = "stopped by Ctrl-C"
    num_rounds = min(map(len, runs))
    return {
        "sides": [{"name": side.name, "url": side.url, "started_here": side.url is None} for side in sides],
        "num_rounds": num_rounds,
        "rounds_asked": asked.rounds,
        "ended": ended,
        "figures": figures([side.name for side in sides], [side_runs[:num_rounds] for side_runs in runs]),
        "remarks": _remarks(sides, target, asked),
        "runs": {side.name: side_runs for side, side_runs in zip(sides, runs, strict=True)},
    }


def figures(names: Sequence[str], runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each figure that every run has: medians and spread by side, and each further side against the first."""
    found = []
    for key in FIGURES:
        readings = [[run.get(key) or 0.0 for run in side_runs] for side_runs in runs]
        if not readings[0] or not all(value > 0 for side in readings for value in side):
            continue
        entry: dict[str, Any] = {"figure": key, "sides": {}, "against_first": {}}
        for name, values in zip(names, readings, strict=True):
            spread = compare(readings[0], values)
            entry["sides"][name] = {"median": spread.b.median, "low": spread.b.low, "high": spread.b.high}
            if name != names[0]:
                entry["against_first"][name] = {
                    "ratio": spread.ratio,
                    "interval": spread.interval,
                    "is_different": spread.is_different,
                    "verdict": spread.verdict(names[0], name),
                }
        found.append(entry)
    return found


def _kept(side: Side, asked: CompareOptions, stack: ExitStack) -> Side:
    """With --together: the side as a server that runs."""
    if side.url is not None or not asked.together:
        return side
    return side._replace(url=stack.enter_context(child_server(side.command, asked.start_timeout_s)))


def _turn(  # noqa: PLR0917 bound by partial, in order
    side: Side,
    into: list[dict[str, Any]],
    send: Send,
    target: TargetOptions,
    asked: CompareOptions,
    say: Callable[[str], None],
) -> None:
    """One run of one side."""
    which = f"round {len(into) + 1} of {asked.rounds}, {side.name}"
    with _running(side, asked) as url:
        result = send(replace(target, url=url, api_key=target.api_key or side.api_key))
    words = last_words(result)
    if words:
        raise _EndedError(f"{which}: {words}")
    into.append(result)
    say(f"{which}: {result['output_throughput']:,.1f} tok/s, TTFT {result['median_ttft_ms']:,.1f} ms")


@contextmanager
def _running(side: Side, asked: CompareOptions) -> Iterator[str]:
    if side.url is not None:
        yield side.url
        return
    with child_server(side.command, asked.start_timeout_s) as url:
        yield url


def _remarks(sides: Sequence[Side], target: TargetOptions, asked: CompareOptions) -> list[str]:
    is_kept = asked.together or any(side.url is not None for side in sides)
    if is_kept and not target.reset_prefix_cache:
        return ["servers that stay up meet the same prompts each round: --reset-prefix-cache forgets them"]
    return []
