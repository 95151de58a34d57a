from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.text.stops import Found, StopFinder

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("ab", max_size=5), max_size=8)


def feed(finder: StopFinder, pieces: list[str]) -> Found:
    text = ""
    for piece in pieces:
        found = finder.push(piece)
        text += found.text
        if found.stop is not None:
            return Found(text, found.stop)
    return Found(text + finder.flush(), None)


def oracle(stops: tuple[str, ...], text: str, is_included: bool) -> Found:
    """Read character by character; the first end of a stop string wins, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return Found(text[: end if is_included else end - len(stop)], stop)
    return Found(text, None)


@given(STOPS, PIECES, st.booleans())
def test_the_cut_of_the_text_does_not_matter(stops: tuple[str, ...], pieces: list[str], is_included: bool) -> None:
    assert feed(StopFinder(stops, is_included=is_included), pieces) == oracle(stops, "".join(pieces), is_included)


@given(STOPS, PIECES)
def test_only_beginnings_of_stop_strings_are_held_back(stops: tuple[str, ...], pieces: list[str]) -> None:
    finder = StopFinder(stops)
    fed = shown = ""
    for piece in pieces:
        found = finder.push(piece)
        if found.stop is not None:
            return
        fed += piece
        shown += found.text
        held = fed[len(shown) :]
        assert fed.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_several_pieces() -> None:
    finder = StopFinder(("</s>", "\n\n"))
    assert finder.push("one<") == Found("one", None)
    assert finder.push("/") == Found("", None)
    assert finder.push("p>two\n") == Found("</p>two", None)
    assert finder.push("\nthree") == Found("", "\n\n")


def test_what_is_held_comes_at_the_end() -> None:
    finder = StopFinder(("END",))
    assert finder.push("the EN") == Found("the ", None)
    assert finder.flush() == "EN"
    assert finder.flush() == ""


@pytest.mark.parametrize(("is_included", "text"), [(False, "x"), (True, "xbc")])
def test_the_first_to_be_complete_wins(is_included: bool, text: str) -> None:
    assert StopFinder(("xbcd", "bc"), is_included=is_included).push("xbcd") == Found(text, "bc")


def test_long_texts_of_near_misses_pass_in_linear_time() -> None:
    finder = StopFinder(("a" * 255 + "b",))
    shown = "".join(finder.push("a" * 100).text for _ in range(2000))
    assert len(shown) == 200_000 - 255
