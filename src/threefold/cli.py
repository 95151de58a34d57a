"""The `threefold` command: finds the subcommand, reads its flags, shows errors as one line. Imports nothing heavy."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from threefold.errors import CallerError, ConfigError, OperatorError, ThreefoldError
from threefold.flags.configs import engine_config, fill, parse_command, server_config
from threefold.flags.flag import Flag, Parsed
from threefold.flags.table import ENGINE_FLAGS, GROUPS, SERVER_FLAGS
from threefold.flags.usage import Group, usage
from threefold.flags.values import integer, number, text
from threefold.request import SamplingParams

USAGE = """    threefold serve [MODEL] [flags]        an OpenAI-compatible server
    threefold run "prompt" [flags]         one answer, streamed to stdout
    threefold plan [MODEL] [flags]         what serve would choose and why, without loading weights
    threefold profile LOG... [flags]       what a load looks like: lengths, bursts, prefixes, predictability
    threefold advise [MODEL] LOG... [flags]  a verdict for every lever, for that load on this machine
    threefold tune [MODEL] LOG... [flags]  the advice, measured where it is open; writes a file for serve --config
    threefold ladder [MODEL] [flags]       one at a time, batches, prefix cache, speculation: what each step gains
    threefold quality [A [B]] --data FILE  how alike two models, or one in two forms, are on a text
    threefold quantize MODEL --scheme S    writes an FP8 or 4-bit checkpoint (-o DIR) and checks what it lost
    threefold report RESULT.json... [flags]  one HTML page from the JSON files that these commands write
    threefold bench serve|compare|offline|envelope|step-load|steps|control|http|dummy [flags]
    threefold version

Exit codes: 0 done; 1 a fault while running; 2 what was typed or configured cannot hold; 130 Ctrl-C.

threefold COMMAND --help lists a command's flags, --help=WORD searches them."""

RUN_FLAGS = (
    Flag("system", "run.system", text, "system message", metavar="TEXT"),
    Flag("max-tokens", "sampling.max_tokens", integer(1), "most tokens of the answer (default 512)", metavar="N"),
    Flag("temperature", "sampling.temperature", number(0, 2), "0 = greedy", metavar="T"),
    Flag("top-p", "sampling.top_p", number(0, 1, is_low_open=True), "share of probability to keep", metavar="P"),
    Flag("top-k", "sampling.top_k", integer(-1), "tokens to keep; 0 = all", metavar="K"),
)
ENGINE_GROUPS = tuple(group for group in GROUPS if group[0] != "Server")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The process's exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a sign gets a question mark in its place
        sys.stdout.reconfigure(errors="replace")
    try:
        _check_text(words)
        return _dispatch(words)
    except (OperatorError, CallerError) as error:
        return _fail(error, 2)
    except ThreefoldError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away: `threefold run … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_text(words: list[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{word!a} is no valid UTF-8 text") from None


def _fail(error: ThreefoldError, code: int) -> int:
    line = " ".join(str(error).split())
    print(f"threefold: error: {line}", file=sys.stderr)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    name = "version" if words[0] == "--version" else words[0]
    if name not in COMMANDS:
        raise ConfigError(f"unknown command '{words[0]}'; known: {', '.join(COMMANDS)}")
    return COMMANDS[name](words[1:])


def _version(words: list[str]) -> int:
    if words:
        raise ConfigError(f"version takes no words, got {' '.join(words)}")
    from threefold import __version__

    print(f"threefold {__version__}")
    return 0


def _serve(words: list[str]) -> int:
    parsed = parse_command(words, SERVER_FLAGS + ENGINE_FLAGS)
    if _helped(parsed, "threefold serve", "[MODEL] [flags]", GROUPS):
        return 0
    engine, server = engine_config(parsed, _one_model(parsed)), server_config(parsed)
    _warn(parsed)
    from threefold.server.run import run_server

    return run_server(engine, server)


def _plan(words: list[str]) -> int:
    # serve's whole command line fits, so that `serve` can be replaced by `plan` and nothing else.
    parsed = parse_command(words, SERVER_FLAGS + ENGINE_FLAGS)
    if _helped(parsed, "threefold plan", "[MODEL] [flags]", GROUPS):
        return 0
    config = engine_config(parsed, _one_model(parsed))
    server_config(parsed)
    _warn(parsed)
    for flag, value, origin in parsed.assignments:
        if flag.field.partition(".")[0] not in ("config", "server"):
            print(f"asked: {flag.name} {value} ({origin})")
    from threefold.engine.build import plan_only

    print(plan_only(config))
    return 0


def _run(words: list[str]) -> int:
    parsed = parse_command(words, RUN_FLAGS + ENGINE_FLAGS)
    if _helped(
        parsed, "threefold run", '"prompt" [flags]   (- reads it from stdin)', (("Run", RUN_FLAGS), *ENGINE_GROUPS)
    ):
        return 0
    if len(parsed.positionals) != 1:
        raise ConfigError(f'run wants one prompt, in quotes: threefold run "…"; got {len(parsed.positionals)}')
    prompt = _read_stdin() if parsed.positionals[0] == "-" else parsed.positionals[0]
    if not prompt.strip():
        raise ConfigError("the prompt is empty")
    system = [str(value) for flag, value, _ in parsed.assignments if flag.field == "run.system"][-1:]
    messages = [{"role": "system", "content": text_} for text_ in system] + [{"role": "user", "content": prompt}]
    config = engine_config(parsed)
    fill("sampling", SamplingParams(), parsed.assignments)  # refuse before a model is loaded
    _warn(parsed)
    from threefold import LLM

    with LLM(engine_config=config) as llm:
        params = fill("sampling", replace(llm.default_params(), max_tokens=512), parsed.assignments)
        for piece in llm.stream_chat(messages, params):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def _read_stdin() -> str:
    try:
        text_ = sys.stdin.read()
        text_.encode()  # a locale may let through what is no text
    except UnicodeError:
        raise ConfigError("the prompt on stdin is no valid UTF-8 text") from None
    return text_


def _bench(words: list[str]) -> int:
    from threefold.bench.commands import run_bench

    return run_bench(words)


def _profile(words: list[str]) -> int:
    from threefold.advise.commands import run_profile

    return run_profile(words)


def _advise(words: list[str]) -> int:
    from threefold.advise.commands import run_advise

    return run_advise(words)


def _tune(words: list[str]) -> int:
    from threefold.advise.commands import run_tune

    return run_tune(words)


def _ladder(words: list[str]) -> int:
    from threefold.advise.ladder_command import run_ladder

    return run_ladder(words)


def _quality(words: list[str]) -> int:
    from threefold.quality.commands import run_quality

    return run_quality(words)


def _report(words: list[str]) -> int:
    from threefold.report.command import run_report

    return run_report(words)


def _quantize(words: list[str]) -> int:
    from threefold.quantize.commands import run_quantize

    return run_quantize(words)


def _helped(parsed: Parsed, command: str, synopsis: str, groups: Sequence[Group]) -> bool:
    if parsed.help_word is None:
        return False
    print(usage(command, synopsis, groups, parsed.help_word))
    return True


def _one_model(parsed: Parsed) -> str | None:
    if len(parsed.positionals) > 1:
        raise ConfigError(f"one MODEL is served, got {len(parsed.positionals)}: {' '.join(parsed.positionals)}")
    return parsed.positionals[0] if parsed.positionals else None


def _warn(parsed: Parsed) -> None:
    for line in dict.fromkeys(parsed.warnings):
        print(f"threefold: warning: {line}", file=sys.stderr)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "run": _run,
    "plan": _plan,
    "bench": _bench,
    "profile": _profile,
    "advise": _advise,
    "tune": _tune,
    "ladder": _ladder,
    "report": _report,
    "quality": _quality,
    "quantize": _quantize,
    "version": _version,
}
