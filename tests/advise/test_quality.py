import json

import pytest

from threefold.advise.quality import COMMANDS, quality_words, read_quality
from threefold.errors import ConfigError

PLAIN = {"quantization": None, "kv_cache_dtype": "auto"}


@pytest.fixture
def write(tmp_path):
    def write(name="q.json", a=PLAIN, b=PLAIN, **more):
        path = tmp_path / name
        result = {"kind": "quality", "model_a": a, "model_b": b, "verdict": f"verdict of {name}"}
        path.write_text(json.dumps(result | more))
        return str(path)

    return write


def test_each_file_belongs_to_a_lever(write):
    paths = [
        write("fp8", b=PLAIN | {"quantization": "fp8"}),
        write("awq", b=PLAIN | {"quantization": "packed_int4"}),
        write("kv", b=PLAIN | {"kv_cache_dtype": "fp8"}),
    ]
    assert read_quality(paths) == {
        "fp8 weights": "verdict of fp8",
        "awq weights": "verdict of awq",
        "fp8 kv cache": "verdict of kv",
    }


def test_a_quantised_model_with_another_cache_is_of_the_cache(write):
    fp8 = PLAIN | {"quantization": "fp8"}
    assert set(read_quality([write(a=fp8, b=fp8 | {"kv_cache_dtype": "fp8"})])) == {"fp8 kv cache"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "compares neither quantised weights nor"),
        ({"b": {"quantization": "fp8", "kv_cache_dtype": "fp8"}}, "two levers at once"),
        ({"kind": "bench"}, "is no result of `threefold quality --json`"),
        ({"b": {}}, "lacks what"),
        ({"b": None}, "lacks what"),
    ],
)
def test_other_files_are_refused(write, more, said):
    with pytest.raises(ConfigError, match=said):
        read_quality([write(**more)])


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_what_is_no_result_is_refused(tmp_path, content):
    path = tmp_path / "q.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--quality"):
        read_quality([str(path)])


def test_what_is_not_measured_comes_with_a_command():
    assert quality_words("fp8 weights", {"fp8 weights": "as good"}) == "quality: as good"
    assert "quality is not measured: threefold quality MODEL --quantization-b fp8" in quality_words("fp8 weights", {})
    assert quality_words("ngram", {}) == ""


@pytest.mark.parametrize("command", COMMANDS.values())
def test_the_commands_are_ours(command):
    from threefold.quality.options import BOTH_FLAGS, QUALITY_FLAGS, SIDE_FLAGS
    from threefold.quantize.options import QUANTIZE_FLAGS

    _, name, *words = command.split()
    flags = QUALITY_FLAGS + SIDE_FLAGS + BOTH_FLAGS if name == "quality" else QUANTIZE_FLAGS
    known = {spelling for flag in flags for spelling in flag.spellings}
    assert {word for word in words if word.startswith("-")} <= known
