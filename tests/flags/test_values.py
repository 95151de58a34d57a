from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.flags import values


@pytest.mark.parametrize(
    ("given_text", "wanted"),
    [
        ("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("4G", 4 * 2**30), ("2g", 2 * 10**9),
        ("-1", -1), ("1_000", 1000), ("0.5K", 512), (" 7 ", 7),
    ],
)  # fmt: skip
def test_human_integers(given_text: str, wanted: int) -> None:
    assert values.human_int(given_text) == wanted


@pytest.mark.parametrize("bad", ["", "k", "1.5", "1e3", "0x10", "1.0001k", "12 34", "½", "١٢x"])
def test_what_is_no_whole_number(bad: str) -> None:
    with pytest.raises(ValueError, match="wants a whole number"):
        values.human_int(bad)


@given(st.integers(-(10**15), 10**15))
def test_plain_integers_stay_themselves(value: int) -> None:
    assert values.human_int(str(value)) == value


def test_bounds() -> None:
    assert values.integer(0, 65535)("65535") == 65535
    with pytest.raises(ValueError, match="between 0 and 65535, got 65536"):
        values.integer(0, 65535)("65536")
    share = values.number(0, 1, is_low_open=True)
    assert share("1") == 1.0
    for bad in ("0", "1.01", "nan", "many"):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            share(bad)


def test_choices_and_synonyms() -> None:
    dtype = values.choice("float16", "float32", half="float16")
    assert dtype("half") == "float16"
    with pytest.raises(ValueError, match="one of float16, float32; got 'int3'"):
        dtype("int3")


def test_known_elsewhere_is_said_to_be_so() -> None:
    parse = values.built_choice("auto", known="fp8 awq")
    with pytest.raises(ValueError, match="known to vLLM, not built in Threefold yet"):
        parse("fp8")
    with pytest.raises(ValueError, match="wants one of auto; got 'zzz'"):
        parse("zzz")


def test_none_words() -> None:
    parse = values.none_or(values.integer(1), "auto", "-1")
    assert parse("auto") is None
    assert parse("AUTO") is None
    assert parse("-1") is None
    assert parse("5") == 5


def test_words_in_all_forms() -> None:
    for form in ('["a", "b"]', "[a,b]", "[a, b]", "a,b"):
        assert values.words(form) == ("a", "b")
    assert values.words('["*"]') == ("*",)


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\none\n\n  two  \n")
    assert values.keys(f"@{file}") == ("one", "two")
    assert values.keys("plain") == ("plain",)
    file.write_text("\n# none\n")
    with pytest.raises(ValueError, match="holds no key"):
        values.keys(f"@{file}")
    with pytest.raises(ValueError, match="cannot read the key file"):
        values.keys(f"@{tmp_path / 'missing'}")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot read the key file"):
        values.keys(f"@{file}")


def test_files_to_write_are_looked_at_before_the_work(tmp_path: Path) -> None:
    for fine in ("new.json", "there/to/be/made/new.json"):
        assert values.output_file(str(tmp_path / fine)) == str(tmp_path / fine)
    assert values.output_file("new.json") == "new.json"
    assert not list(tmp_path.iterdir()), "nothing is made yet"
    (tmp_path / "file").write_text("")
    assert values.output_file(str(tmp_path / "file"))
    for wrong in (str(tmp_path), str(tmp_path / "file" / "new.json"), ""):
        with pytest.raises(ValueError, match=r"is a folder|cannot be written|not empty"):
            values.output_file(wrong)
