"""`threefold bench COMMAND`: from words to a table, a JSON file and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from threefold.bench.alone_options import CONTROL_FLAGS, HTTP_FLAGS, ControlOptions, HttpOptions
from threefold.bench.compare_options import COMPARE_FLAGS, CompareOptions
from threefold.bench.dummy_options import DUMMY_FLAGS, DummyOptions
from threefold.bench.envelope_options import ENVELOPE_FLAGS, EnvelopeOptions
from threefold.bench.load_options import CONCURRENCY_FLAG, LOAD_FLAGS, SEED_FLAG, SHUFFLE_SEED_FLAG, LoadOptions
from threefold.bench.machine import provenance
from threefold.bench.report import json_text, print_table, say, table_lines, write_json, write_text
from threefold.bench.serve_options import (
    ARRIVAL_FLAGS,
    KEEP_FLAGS,
    RATE_FLAG,
    SWEEP_FLAGS,
    ArrivalOptions,
    KeepOptions,
    SweepOptions,
)
from threefold.bench.step_load_options import STEP_LOAD_FLAGS, StepLoadOptions
from threefold.bench.steps_options import STEPS_FLAGS, StepsOptions
from threefold.bench.target_options import TARGET_FLAGS, TargetOptions
from threefold.bench.workload import make_workload
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, fill, parse_command
from threefold.flags.flag import Parsed
from threefold.flags.table import ENGINE_GROUPS
from threefold.flags.usage import Group, usage
from threefold.report.charts import check_html

USAGE = """\
usage: threefold bench COMMAND [flags]

  serve     load on a running OpenAI-compatible server, over HTTP: closed loop, at a rate, a trace, or a sweep of either
  compare   the same load on several configurations or servers in turn: what differs, and what does not
  offline   the same load on an engine in this process, without HTTP
  envelope  speculation off, gated, fixed and adaptive in turn, over a table of loads: does it ever lose?
  step-load users come and go at once: in how many steps do drafts follow?
  steps     where a step's time goes, host and device, with so many requests running
  control   the scheduler alone: microseconds a row and step, no model
  http      the HTTP server alone: tokens a second with a fake engine behind it
  dummy     a model folder without weights, for --load-format dummy: threefold bench dummy SHAPE FOLDER

threefold bench COMMAND --help lists its flags."""


class Finding(NamedTuple):
    """What a command measured."""

    result: dict[str, Any]
    """For the JSON file."""
    lines: list[str]
    """For the terminal."""
    json: str | None
    """The file asked for."""
    is_good: bool
    """False when nothing was completed: the exit code says so."""
    write_more: Callable[[dict[str, Any]], None] | None = None
    """Writes further files from the result and where it was measured; called when the JSON is safe."""
    complaint: str = ""
    """A line for stderr when not all went as asked."""
    html: str | None = None
    """The page asked for."""


class Command(NamedTuple):
    """One bench command."""

    groups: tuple[Group, ...]
    run: Callable[[Parsed], Finding]
    takes_engine: bool = False
    """True when it takes MODEL and the engine's flags."""
    words: str = ""
    """How the words that it takes are called in its usage; "" = none but MODEL."""


def run_bench(words: Sequence[str]) -> int:
    """Run one of the bench commands; `words` are those after `threefold bench`.

    Returns:
        0, or 1 when nothing was completed.

    Raises:
        ConfigError: what was typed cannot hold.
    """
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        raise ConfigError(f"unknown bench command '{words[0]}'; known: {', '.join(COMMANDS)}")
    flags = [flag for _, group in command.groups for flag in group]
    parsed = parse_command(words[1:], flags, refuses_vllm=command.takes_engine)
    if parsed.help_word is not None:
        synopsis = "[MODEL] [flags]" if command.takes_engine else "[flags]"
        synopsis = f"{command.words} [flags]" if command.words else synopsis
        print(usage(f"threefold bench {words[0]}", synopsis, command.groups, parsed.help_word))
        return 0
    if not command.words and len(parsed.positionals) > command.takes_engine:
        raise ConfigError(f"bench {words[0]} has no use for '{parsed.positionals[-1]}'; --help lists the flags")
    where = provenance(without_secrets(["bench", *words]))  # before the load: the commit that is measured
    finding = command.run(parsed)
    print_table(finding.lines)
    result = {**where, **finding.result}
    if finding.json is not None:
        write_json(Path(finding.json), result)
    if finding.write_more is not None:
        finding.write_more(result)
    if finding.html is not None:
        from threefold.report.build import write_result_page

        write_result_page(finding.html, result)
    if finding.complaint:
        print(f"threefold: {finding.complaint}", file=sys.stderr)
    return 0 if finding.is_good else 1


def without_secrets(words: Sequence[str]) -> list[str]:
    """The command as it may be written down: what follows --api-key and --header is masked."""
    shown: list[str] = []
    is_secret = False
    for word in words:
        name, has_value, _ = word.partition("=")
        if word.startswith("--"):
            is_secret = name.replace("_", "-") in ("--api-key", "--header")
            shown.append(f"{name}=***" if is_secret and has_value else word)
        else:
            shown.append("***" if is_secret else word)
    return shown


def _serve(parsed: Parsed) -> Finding:
    load = fill("load", LoadOptions(), parsed.assignments)
    target = fill("target", TargetOptions(), parsed.assignments)
    arrival = fill("arrival", ArrivalOptions(), parsed.assignments)
    keep = fill("keep", KeepOptions(), parsed.assignments)
    from threefold.bench.keep import result_path
    from threefold.bench.serve import bench_server, last_words
    from threefold.bench.sweep import Point, bench_sweep, sweep_lines, sweep_points

    check_html(keep.html)
    points = sweep_points(fill("sweep", SweepOptions(), parsed.assignments), load, arrival)
    workload = make_workload(load)

    def write_more(result: dict[str, Any]) -> None:
        path = result_path(keep, result)
        if path is not None:
            write_text(path, json_text(result), "--result-filename")

    def send(point: Point) -> dict[str, Any]:
        return bench_server(workload, point.load, target, point.arrival, keep)

    if len(points) > 1:
        result = bench_sweep(points, send, say=say)
        lines, words, is_good = sweep_lines(result), result["ended"], result["is_whole"]
        return Finding(result, lines, load.json, is_good, write_more, words, keep.html)
    result = send(points[0])
    lines = table_lines(result, metrics=keep.percentile_metrics, percentiles=keep.metric_percentiles)
    is_good = result["completed"] > 0 and not result["server_gone"]
    return Finding(result, lines, load.json, is_good, write_more, last_words(result), keep.html)


def _compare(parsed: Parsed) -> Finding:
    from threefold.bench.compare_sides import NUM_WARMUPS, compare_sides, read_sides
    from threefold.bench.compare_table import compare_lines, plot_comparison
    from threefold.bench.plot import check_plot
    from threefold.bench.serve import bench_server

    load = fill("load", LoadOptions(num_warmups=NUM_WARMUPS), parsed.assignments)
    target = fill("target", TargetOptions(), parsed.assignments)
    arrival = fill("arrival", ArrivalOptions(), parsed.assignments)
    asked = fill("compare", CompareOptions(), parsed.assignments)
    if target.url is not None:
        raise ConfigError("--url: a side names its server in its YAML file, as `url: http://…`")
    check_plot(asked.plot)
    sides = read_sides(parsed.positionals)

    def write_more(result: dict[str, Any]) -> None:
        if asked.plot is not None:
            plot_comparison(Path(asked.plot), result)

    workload = make_workload(load)
    result = compare_sides(sides, lambda aimed: bench_server(workload, load, aimed, arrival), target, asked, say=say)
    return Finding(result, compare_lines(result), load.json, bool(result["num_rounds"]), write_more, result["ended"])


def _offline(parsed: Parsed) -> Finding:
    load = fill("load", LoadOptions(), parsed.assignments)
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    workload = make_workload(load)
    from threefold.bench.offline import bench_offline
    from threefold.bench.serve import last_words

    result = bench_offline(workload, load, config)
    return Finding(result, table_lines(result), load.json, result["completed"] > 0, None, last_words(result))


def _envelope(parsed: Parsed) -> Finding:
    asked = fill("envelope", EnvelopeOptions(), parsed.assignments)
    check_html(asked.html)
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    from threefold.bench.envelope import bench_envelope
    from threefold.bench.envelope_table import markdown, terminal_lines
    from threefold.bench.plot import check_plot, plot_envelope

    def write_more(result: dict[str, Any]) -> None:
        if asked.markdown is not None:
            write_text(Path(asked.markdown), markdown(result), "--markdown")
        if asked.plot is not None:
            plot_envelope(Path(asked.plot), result)

    check_plot(asked.plot)
    result = bench_envelope(asked, config, say=say)
    return Finding(result, terminal_lines(result), asked.json, bool(result["cells"]), write_more, html=asked.html)


def _step_load(parsed: Parsed) -> Finding:
    asked = fill("step_load", StepLoadOptions(), parsed.assignments)
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    from threefold.bench.plot import check_plot, plot_step_load
    from threefold.bench.step_load import bench_step_load, step_load_lines

    def write_more(result: dict[str, Any]) -> None:
        if asked.plot is not None:
            plot_step_load(Path(asked.plot), result)

    check_plot(asked.plot)
    check_html(asked.html)
    result = bench_step_load(asked, config)
    return Finding(result, step_load_lines(result), asked.json, True, write_more, html=asked.html)


def _steps(parsed: Parsed) -> Finding:
    asked = fill("steps", StepsOptions(), parsed.assignments)
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    from threefold.bench.steps import bench_steps, steps_lines

    check_html(asked.html)
    result = bench_steps(asked, config)
    return Finding(result, steps_lines(result), asked.json, is_good=True, html=asked.html)


def _control(parsed: Parsed) -> Finding:
    asked = fill("control", ControlOptions(), parsed.assignments)
    from threefold.bench.control import bench_control, control_lines

    result = bench_control(asked)
    return Finding(result, control_lines(result), asked.json, is_good=True)


def _http(parsed: Parsed) -> Finding:
    asked = fill("http", HttpOptions(), parsed.assignments)
    from threefold.bench.http import bench_http

    result = bench_http(asked)
    return Finding(result, table_lines(result, "HTTP Benchmark Result"), asked.json, is_good=result["completed"] > 0)


def _dummy(parsed: Parsed) -> Finding:
    if len(parsed.positionals) != 2:
        raise ConfigError("bench dummy wants a shape and a folder: threefold bench dummy qwen3-8b ./qwen3-8b")
    shape, folder = parsed.positionals
    asked = fill("dummy", DummyOptions(), parsed.assignments)
    from threefold.bench.dummy import write_dummy

    lines = [f"{write_dummy(shape, Path(folder), asked.quantization)}: run it with --load-format dummy"]
    return Finding({"shape": shape, "folder": folder}, lines, None, is_good=True)


_LOAD_GROUPS: tuple[Group, ...] = (
    ("Load", (*LOAD_FLAGS, SEED_FLAG)),
    ("Server", TARGET_FLAGS),
)

COMMANDS = {
    "serve": Command((("Arrivals", (*SWEEP_FLAGS, *ARRIVAL_FLAGS)), *_LOAD_GROUPS, ("Result", KEEP_FLAGS)), _serve),
    "compare": Command(
        (
            ("Comparison", COMPARE_FLAGS),
            ("Arrivals", (CONCURRENCY_FLAG, RATE_FLAG, *ARRIVAL_FLAGS)),
            *_LOAD_GROUPS,
        ),
        _compare,
        words="A.yaml B.yaml ...",
    ),
    "offline": Command(
        (("Load", (CONCURRENCY_FLAG, *LOAD_FLAGS, SHUFFLE_SEED_FLAG)), *ENGINE_GROUPS), _offline, takes_engine=True
    ),
    "envelope": Command((("Envelope", ENVELOPE_FLAGS), *ENGINE_GROUPS), _envelope, takes_engine=True),
    "step-load": Command((("Load", STEP_LOAD_FLAGS), *ENGINE_GROUPS), _step_load, takes_engine=True),
    "steps": Command((("Steps", STEPS_FLAGS), *ENGINE_GROUPS), _steps, takes_engine=True),
    "control": Command((("Control", CONTROL_FLAGS),), _control),
    "http": Command((("HTTP", HTTP_FLAGS),), _http),
    "dummy": Command((("Dummy", DUMMY_FLAGS),), _dummy, words="SHAPE FOLDER"),
}
