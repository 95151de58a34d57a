"""Typed reading: right values pass, wrong ones name the file, the field, the rule and what was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from threefold.errors import ModelLoadError
from threefold.models.fields import Fields, read_json_object


def test_values_pass_and_null_counts_as_absent() -> None:
    fields = Fields({"a": 3, "b": None, "c": 0.5, "d": True, "e": "x", "f": [1, 2], "g": {"h": 1}}, "here")
    assert fields.integer("a") == 3
    assert fields.integer("b", 7) == 7
    assert fields.number("a") == 3.0
    assert fields.number("c") == 0.5
    assert fields.boolean("d", False) is True
    assert fields.boolean("b", False) is False
    assert fields.text("e") == "x"
    assert fields.integers("f") == (1, 2)
    assert fields.integers("a") == (3,)
    assert fields.integers("b") == ()
    section = fields.section("g")
    assert section is not None and section.integer("h") == 1
    assert fields.section("b") is None


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [8], 2**60])
def test_a_wrong_whole_number_is_named(value: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json: size must be a whole number from 1 to .*; got"):
        Fields({"size": value}, "config.json").integer("size")


@pytest.mark.parametrize(
    "value", [0, -1.0, "1", True, float("nan"), float("inf"), 10**400], ids=lambda value: repr(value)[:8]
)
def test_a_wrong_number_is_named(value: Any) -> None:
    with pytest.raises(ModelLoadError, match="eps must be a positive number; got"):
        Fields({"eps": value}, "config.json").number("eps")


def test_other_wrong_types_are_named() -> None:
    fields = Fields({"flag": 1, "name": 2, "ids": [1, -1], "part": [1]}, "f")
    with pytest.raises(ModelLoadError, match="flag must be true or false"):
        fields.boolean("flag", True)
    with pytest.raises(ModelLoadError, match="name must be a string"):
        fields.text("name")
    with pytest.raises(ModelLoadError, match="ids must be a token id or a list"):
        fields.integers("ids")
    with pytest.raises(ModelLoadError, match="part must be an object"):
        fields.section("part")


def test_a_missing_field_says_so() -> None:
    with pytest.raises(ModelLoadError, match="it is missing"):
        Fields({}, "config.json").integer("hidden_size")


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, b"\xff\xfe{".decode("latin-1")])
def test_broken_json_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelLoadError, match="not valid JSON") as caught:
        read_json_object(path)
    assert "\n" not in str(caught.value)


def test_json_that_is_no_object_or_no_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps([1]))
    with pytest.raises(ModelLoadError, match="holds a list"):
        read_json_object(path)
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        read_json_object(tmp_path / "other.json")
