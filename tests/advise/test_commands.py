import json

import pytest

from threefold import cli
from threefold.advise import commands


@pytest.fixture(autouse=True)
def words_for_tokens(monkeypatch, tokenizer):
    monkeypatch.setattr(commands, "open_tokenizer", lambda config: tokenizer)


@pytest.fixture
def log(write_log):
    text = " ".join(f"w{index}" for index in range(40))
    return str(write_log([{"prompt": f"{text} {index}", "output": text} for index in range(8)] + ["{"]))


def test_profile(log, tmp_path, capsys):
    out = tmp_path / "portrait.json"
    assert cli.main(["profile", log, "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "8 requests (8 prompts)" in said
    assert "line 9: is no JSON" in said
    assert json.loads(out.read_text())["num_requests"] == 8


def test_advise_for_a_machine_on_file(log, facts, tmp_path, capsys):
    machine, out = tmp_path / "machine.json", tmp_path / "advice.json"
    machine.write_text(json.dumps(facts.to_dict()))
    words = ["advise", log, "--machine", str(machine), "--concurrency", "2", "--slo", "ttft:500,tpot:50"]
    assert cli.main([*words, "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "made-up on card" in said
    assert "what to do:" in said
    figures = json.loads(out.read_text())
    assert {"portrait", "facts", "machine", "advice", "command"} <= set(figures)
    assert figures["advice"]["targets"] == {"ttft": 500.0, "tpot": 50.0}


def test_advise_says_what_quantising_does_to_answers(log, facts, tmp_path, capsys):
    machine, quality = tmp_path / "machine.json", tmp_path / "quality.json"
    machine.write_text(json.dumps(facts.to_dict()))
    plain = {"quantization": None, "kv_cache_dtype": "auto"}
    measured = {"model_a": plain, "model_b": plain | {"quantization": "fp8"}, "verdict": "B is as good"}
    quality.write_text(json.dumps({"kind": "quality", **measured}))
    words = ["advise", log, "--machine", str(machine), "--concurrency", "2", "--quality", str(quality)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "quality: B is as good" in said
    assert "quality is not measured: threefold quality MODEL --kv-cache-dtype-b fp8" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile"], "no log is given"),
        (["profile", "/nowhere.jsonl"], "cannot read it"),
        (["advise"], "no log is given"),
        (["advise", "LOG", "--slo", "speed:3"], "wants ttft:MS"),
        (["advise", "LOG", "--machine", "/nowhere.json"], "cannot read it"),
        (["advise", "LOG", "--quality", "/nowhere.json"], "--quality /nowhere.json: cannot read it"),
        (["advise", "LOG", "--machine", "x", "--verify"], "need the engine itself"),
        (["advise", "LOG", "--machine", "x", "--reload"], "need the engine itself"),
        (["advise", "LOG", "--draft-acceptance", "3"], "between 0 and 1"),
        (["tune"], "no log is given"),
        (["tune", "LOG", "--machine", "x"], "leave --machine out"),
        (["tune", "LOG", "--verify"], "--verify is for advise"),
        (["tune", "LOG", "--by-kind"], "says how --verify measures"),
        (["advise", "LOG", "--awq-model", "x"], "give --reload too"),
        (["ladder", "a", "b"], "one MODEL"),
        (["ladder", "--no-speculation"], "ends with speculation"),
        (["ladder", "--users", "0"], "at least 1"),
    ],
)
def test_mistakes_are_one_line(words, said, log, capsys):
    assert cli.main([log if word == "LOG" else word for word in words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_empty_log(tmp_path, capsys):
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    assert cli.main(["profile", str(path)]) == 2
    assert "holds no request" in capsys.readouterr().err


def test_tune_shows_no_flag_that_it_refuses(capsys):
    assert cli.main(["tune", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--slo" in shown
    assert not [flag for flag in ("--verify ", "--machine ", "--by-kind ", "--users ", "--markdown ") if flag in shown]


@pytest.mark.parametrize("command", ["profile", "advise", "tune", "ladder"])
def test_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert f"threefold {command}" in capsys.readouterr().out


def test_model_and_log_are_told_apart(tmp_path, log):
    parsed = commands.parse_command(["some/model", log], commands.LOG_FLAGS)
    assert commands._model_and_logs(parsed) == ("some/model", [log])
    parsed = commands.parse_command([log, log], commands.LOG_FLAGS)
    assert commands._model_and_logs(parsed) == (None, [log, log])
