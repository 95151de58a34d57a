"""The command as a process and as a function: exit codes, one line for errors, nothing heavy for help."""

import io
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import ClassVar

import pytest

from threefold import __version__, cli
from threefold.config import EngineConfig, ServerConfig
from threefold.errors import ConfigError, EngineDeadError, InvalidRequestError
from threefold.request import SamplingParams


def threefold(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "threefold", *words]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=60, check=False)


def test_version_and_help_as_a_process() -> None:
    done = threefold("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"threefold {__version__}\n", "")
    done = threefold("--help")
    assert done.returncode == 0
    assert "threefold serve [MODEL]" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from threefold.cli import main; main(['serve', '--help']); main(['bench', '--help']);"
        "print(sorted({'torch', 'fastapi', 'uvicorn', 'pydantic', 'zmq', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_error_is_one_line_and_exit_code_2() -> None:
    done = threefold("serve", "--max-num-seq", "4")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("threefold: error: unknown flag --max-num-seq; nearest: --max-num-seqs")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["frobnicate"],
            "unknown command 'frobnicate'; known: serve, run, plan, bench, profile, advise, tune, ladder, report",
        ),
        (["serve", "a", "b"], "one MODEL is served, got 2: a b"),
        (["serve", "--trust-remote-code"], "--trust-remote-code: not built in Threefold"),
        (["serve", "--speculative-config", "{method:ngrm}"], "did you mean 'ngram'"),
        (["plan", "--port", "x"], "--port wants a whole number"),
        (["run"], "run wants one prompt"),
        (["run", "a", "b"], "run wants one prompt"),
        (["run", "  "], "the prompt is empty"),
        (["run", "x", "--temperature", "3"], "between 0 and 2"),
        (["run", "x", "--port", "1"], "unknown flag --port"),
        (
            ["bench", "swim"],
            "unknown bench command 'swim'; known: serve, compare, offline, envelope, step-load, steps, control, http",
        ),
        (["bench", "serve"], "--dataset FILE is needed"),
        (["bench", "serve", "word"], "bench serve has no use for 'word'"),
        (["bench", "control", "--rows", "0"], "at least 1"),
        (["version", "2"], "version takes no words"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("threefold: error: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "words", [["--help"], ["serve", "-h"], ["run", "--help"], ["plan", "--help=seed"], ["bench"], []]
)
def test_help_is_exit_code_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert "threefold" in capsys.readouterr().out


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[EngineConfig, ServerConfig]]]:
    calls: list[tuple[EngineConfig, ServerConfig]] = []
    module = types.ModuleType("threefold.server.run")

    def run_server(engine: EngineConfig, server: ServerConfig) -> int:
        calls.append((engine, server))
        if engine.model.model == "dead":
            raise EngineDeadError("the engine\nis gone")
        if engine.model.model == "missing":
            raise ConfigError("no such model")
        return 0

    module.run_server = run_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "threefold.server.run", module)
    yield calls


def test_serve_hands_over_both_configs(served, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "M", "--port", "9", "--max-num-seqs", "3", "--swap-space", "0", "--swap-space", "0"]) == 0
    engine, server = served[0]
    assert (engine.model.model, engine.scheduler.max_num_seqs, server.port) == ("M", 3, 9)
    assert capsys.readouterr().err.count("--swap-space has no effect here") == 1


def test_no_graphs_is_an_order(served, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "M", "--enforce-eager"]) == 0
    assert served[0][0].device.enforce_eager
    assert capsys.readouterr().err == ""


def test_exit_codes_tell_whose_fault_it_was(served, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "missing"]) == 2
    assert cli.main(["serve", "dead"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "threefold: error: the engine is gone"


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "version", interrupt)
    assert cli.main(["version"]) == 130


class FakeLLM:
    asked: ClassVar[list[object]] = []

    def __init__(self, *, engine_config: EngineConfig) -> None:
        self.asked.append(engine_config)

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.asked.append("closed")

    def default_params(self) -> SamplingParams:
        return SamplingParams(top_p=0.9, max_tokens=256)

    def stream_chat(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[str]:
        self.asked += [messages, params]
        if messages[-1]["content"] == "too long":
            raise InvalidRequestError("the prompt is too long")
        yield from ("Hel", "lo")


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    FakeLLM.asked = []
    monkeypatch.setitem(sys.modules["threefold"].__dict__, "LLM", FakeLLM)
    return FakeLLM


def test_run_streams_an_answer(llm: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        "Hi",
        "--model",
        "M",
        "--system",
        "Be brief.",
        "--max-tokens",
        "7",
        "--temperature",
        "0",
        "--seed",
        "3",
    ]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == "Hello\n"
    config, messages, params, closed = llm.asked
    assert isinstance(config, EngineConfig)
    assert (config.model.model, config.model.seed) == ("M", 3)
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert isinstance(params, SamplingParams)
    assert (params.max_tokens, params.temperature, params.top_p) == (7, 0.0, 0.9)
    assert closed == "closed"


def test_run_reads_stdin(llm: type[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert cli.main(["run", "-"]) == 0
    assert llm.asked[1] == [{"role": "user", "content": "from a pipe\n"}]


def test_a_refused_prompt_is_one_line(llm: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "too long"]) == 2
    assert capsys.readouterr().err == "threefold: error: the prompt is too long\n"
    assert llm.asked[-1] == "closed"


def test_plan_prints_what_was_asked_and_what_would_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("threefold.engine.build")
    module.plan_only = lambda config: f"max_num_seqs {config.scheduler.max_num_seqs}: as asked"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "threefold.engine.build", module)
    assert cli.main(["plan", "M", "--max-num-seqs", "3", "--port", "9"]) == 0
    assert capsys.readouterr().out == "asked: max-num-seqs 3 (command line)\nmax_num_seqs 3: as asked\n"


def test_words_that_are_no_text_are_one_line(llm: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "\udcff hi"], ["plan", "--served-model-name", "\udcff"]):
        assert cli.main(words) == 2
        assert "\\udcff" in (said := capsys.readouterr().err)
        assert said.endswith("is no valid UTF-8 text\n")
    assert llm.asked == []


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_on_stdin_that_is_no_text_is_one_line(
    errors: str, llm: type[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors=errors))
    assert cli.main(["run", "-"]) == 2
    assert capsys.readouterr().err == "threefold: error: the prompt on stdin is no valid UTF-8 text\n"


def test_a_terminal_that_lacks_signs_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    monkeypatch.setitem(cli.COMMANDS, "version", lambda words: print("2.0 × as fast") or 0)
    assert cli.main(["version"]) == 0
    assert shown.getvalue() == b"2.0 ? as fast\n"
