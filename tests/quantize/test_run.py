import json

import pytest

from threefold import cli
from threefold.quantize import awq, run
from threefold.quantize.fp8 import write_fp8


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))


def test_fp8_is_written_and_checked(make_model, texts, tmp_path, capsys):
    model, out = make_model(), tmp_path / "deep" / "fp8"
    words = ["quantize", str(model), "--scheme", "fp8", "--calibration", str(texts), "-o", str(out)]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert "14 of 14 products quantised" in said.err
    assert "B answers differently at" in said.out
    result = json.loads((out / "threefold-quality.json").read_text())
    assert result["model_b"]["model"] == str(out)
    assert 0 < result["divergence"]["value"] < 1
    assert 0 < result["disagreement"]["value"] < 0.5
    assert [path.name for path in out.parent.iterdir()] == ["fp8"]
    assert cli.main(words) == 2
    assert "holds files already" in capsys.readouterr().err


def test_no_text_is_needed_without_a_check(make_model, tmp_path):
    out = tmp_path / "fp8"
    out.mkdir()
    assert cli.main(["quantize", str(make_model()), "--scheme", "fp8", "--no-check", "-o", str(out)]) == 0
    assert not (out / "threefold-quality.json").exists()
    assert (out / "config.json").is_file()


def test_awq_learns_from_most_and_is_checked_on_the_rest(make_model, texts, tmp_path, monkeypatch, capsys):
    learned, checked = [], []
    monkeypatch.setattr(run, "check_can_run", lambda device: None)
    monkeypatch.setattr(run, "compare_on", lambda pair, pieces, *rest, **more: checked.extend(pieces) or {})
    monkeypatch.setattr("threefold.quantize.commands.quality_lines", lambda result: [])

    def write(source, folder, pieces, device):
        learned.extend(pieces)
        return write_fp8(source, folder, lambda done, num: None)

    monkeypatch.setattr(run, "write_awq", write)
    model = make_model(intermediate_size=128)
    words = ["quantize", str(model), "--scheme", "awq", "--calibration", str(texts), "-o", str(tmp_path / "awq")]
    assert cli.main(words) == 0
    assert (len(learned), len(checked)) == (10, 2)
    assert not [piece for piece in checked if piece in learned]
    assert json.loads((tmp_path / "awq" / "threefold-quality.json").read_text())["data"].endswith("(held out)")


def test_what_is_unfinished_is_taken_away(make_model, texts, tmp_path, monkeypatch, capsys):
    def fail(source, folder, tell):
        (folder / "part").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "write_fp8", fail)
    out = tmp_path / "out" / "fp8"
    assert cli.main(["quantize", str(make_model()), "--scheme", "fp8", "--no-check", "-o", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["MODEL"], "--scheme is needed"),
        (["MODEL", "--scheme", "int3"], "wants one of fp8, awq"),
        (["MODEL", "--scheme", "fp8"], "-o DIR is needed"),
        (["MODEL", "--scheme", "fp8", "-o", "OUT"], "the check reads it; --no-check"),
        (["MODEL", "--scheme", "awq", "-o", "OUT", "--no-check"], "awq learns from it"),
        (["MODEL", "--scheme", "fp8", "-o", "OUT", "--calibration", "/nowhere"], "--calibration /nowhere: cannot read"),
        (["MODEL", "MODEL2", "--scheme", "fp8"], "one MODEL is quantised"),
        (["/nowhere", "--scheme", "fp8", "-o", "OUT", "--no-check"], "no such file or folder"),
    ],
)
def test_mistakes_are_one_line(make_model, tmp_path, words, said, capsys):
    known = {"MODEL": lambda: make_model(), "OUT": lambda: tmp_path / "out"}
    assert cli.main(["quantize", *(str(known[word]()) if word in known else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_awq_says_what_it_needs(make_model, texts, tmp_path, monkeypatch, capsys):
    words = ["quantize", str(make_model()), "--scheme", "awq", "--calibration", str(texts), "-o", str(tmp_path / "o")]
    monkeypatch.setattr(awq, "find_spec", lambda name: None)
    assert cli.main([*words, "--device", "cpu"]) == 2
    assert "pip install 'threefold[quantize]'" in capsys.readouterr().err
    monkeypatch.setattr(awq, "find_spec", lambda name: object())
    assert cli.main([*words, "--device", "cpu"]) == 2
    assert "--scheme awq needs a card" in capsys.readouterr().err


def test_too_little_text_to_hold_out(make_model, write_lines, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "check_can_run", lambda device: None)
    data = write_lines([{"text": "one text alone"}])
    model = make_model(intermediate_size=128)
    words = ["quantize", str(model), "--scheme", "awq", "--calibration", str(data), "-o", str(tmp_path / "o")]
    assert cli.main(words) == 2
    assert "too few to hold any out" in capsys.readouterr().err


def test_help(capsys):
    assert cli.main(["quantize", "--help"]) == 0
    assert "--scheme SCHEME" in capsys.readouterr().out
