import json

import pytest
import torch

from threefold import cli
from threefold.config import DeviceConfig, EngineConfig, ModelConfig
from threefold.engine import opened
from threefold.flags.configs import parse_command
from threefold.quality.commands import side_configs
from threefold.quality.compare import open_pair
from threefold.quality.options import BOTH_FLAGS, QUALITY_FLAGS, SIDE_FLAGS


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))


def configs(*words):
    return side_configs(parse_command(words, QUALITY_FLAGS + SIDE_FLAGS + BOTH_FLAGS))


def test_two_models_are_compared(make_model, texts, tmp_path, capsys):
    a, b, out = make_model("a"), make_model("b", seed=8), tmp_path / "out" / "quality.json"
    assert cli.main(["quality", str(a), str(b), "--data", str(texts), "--dtype", "float32", "--json", str(out)]) == 0
    said = capsys.readouterr()
    assert "perplexity of A" in said.out
    assert said.out.splitlines()[-1].startswith("B answers differently at ")
    assert "12 of 12 pieces: perplexity" in said.err
    result = json.loads(out.read_text())
    assert result["kind"] == "quality"
    assert result["num_pieces"] == 12
    assert result["divergence"]["low"] < result["divergence"]["value"] < result["divergence"]["high"]
    assert result["model_a"]["model"] == str(a)
    assert result["command"].startswith("threefold quality ")


def test_a_model_against_itself_is_the_same(make_model, texts, capsys):
    a = str(make_model())
    words = ["quality", a, a, "--data", str(texts), "--dtype", "float32", "--one-at-a-time"]
    assert cli.main(words) == 0
    assert "B answers exactly as A at every token" in capsys.readouterr().out


def test_one_model_in_two_types(make_model, texts, capsys):
    words = ["quality", str(make_model()), "--data", str(texts), "--dtype-a", "float32", "--dtype-b", "bfloat16"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "float32)" in said
    assert "bfloat16)" in said
    assert "exactly" not in said


def test_what_embedding_and_head_in_eight_bits_lose(make_model, texts, capsys):
    words = ["quality", str(make_model()), "--data", str(texts), "--dtype", "float32", "--quantization", "fp8"]
    assert cli.main([*words, "--quantize-embeddings-a", "none"]) == 0
    a, b, *rest = capsys.readouterr().out.splitlines()
    assert "embedding int8" not in a
    assert "embedding int8" in b
    assert "exactly" not in rest[-1]


def test_what_a_cpu_chooses_is_chosen_once(make_model, monkeypatch):
    measured = iter([torch.float32, torch.bfloat16])
    monkeypatch.setattr(opened, "preferred_cpu_dtype", lambda: next(measured))
    config = EngineConfig(model=ModelConfig(model=str(make_model())), device=DeviceConfig(device="cpu"))
    pair = open_pair(config, config)
    assert pair.a.config.model.dtype == pair.b.config.model.dtype == "float32"


def test_settings_go_to_the_side_they_name():
    a, b = configs("m", "--dtype", "float32", "--dtype-b", "bfloat16", "--quantization-b", "fp8", "--num-threads", "2")
    assert (a.model.model, b.model.model) == ("m", "m")
    assert (a.model.dtype, b.model.dtype) == ("float32", "bfloat16")
    assert (a.model.quantization, b.model.quantization) == (None, "fp8")
    assert a.device == b.device
    a, b = configs("m", "n", "--kv-cache-dtype-b", "fp8")
    assert (a.model.model, b.model.model) == ("m", "n")
    assert (a.cache.kv_cache_dtype, b.cache.kv_cache_dtype) == ("auto", "fp8")
    a, b = configs("--dtype-a", "float32")
    assert a.model.model is b.model.model is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["A", "B"], "--data FILE"),
        (["A", "--data", "TEXTS"], "A and B are the same"),
        (["A", "B", "C", "--data", "TEXTS"], "two models are compared, got 3"),
        (["A", "B", "--data", "/nowhere"], "--data /nowhere: cannot read it"),
        (["A", "/nowhere", "--data", "TEXTS"], "/nowhere: no such file or folder"),
        (["A", "REVERSED", "--data", "TEXTS"], "only models of one tokenizer can be compared"),
        (["A", "B", "--data", "BAD"], "line 1: is no JSON"),
        (["A", "B", "--data", "TEXTS", "--window", "1"], "of at least 2"),
        (["A", "--data", "TEXTS", "--quantization-b", "nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_one_line(make_model, texts, write_lines, words, said, capsys):
    known = {
        "TEXTS": lambda: texts,
        "BAD": lambda: write_lines(["{"], "bad.jsonl"),
        "A": lambda: make_model("a"),
        "B": lambda: make_model("b"),
        "REVERSED": lambda: make_model("c", words="reversed"),
    }
    assert cli.main(["quality", *(str(known[word]()) if word in known else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_help_lists_both_sides(capsys):
    assert cli.main(["quality", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--quantization-b SCHEME" in said
    assert "--data FILE" in said
