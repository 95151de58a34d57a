"""JSON for the command line, also when a shell has eaten its quotes. Knows nothing of what the keys mean.

`{"method":"ngram"}` typed without single quotes around it reaches us as `{method:ngram}`, and with a comma inside, bash
and zsh expand the braces: `{method:ngram,num_speculative_tokens:5}` arrives as the two words `method:ngram` and
`num_speculative_tokens:5`. Both are read as what they were meant to be.
"""

from __future__ import annotations

import json
import re

_PAIR = re.compile(r"^\s*[\"']?[A-Za-z][\w-]*[\"']?\s*:\s*\S")
_BARE_END = {"object": ",}", "list": ",]", "key": ":"}


def looks_like_pair(word: str) -> bool:
    """True for a word such as `method:ngram`: what brace expansion leaves of an object."""
    return _PAIR.match(word) is not None and not re.match(r"^[a-z]+://", word)


def parse_object(text: str) -> dict[str, object]:
    """Read one object, or the space-separated pairs that brace expansion leaves of one.

    Raises:
        ValueError: it is no object; the message shows the form that works.
    """
    source = text.strip()
    if not source.startswith("{"):
        source = "{" + ",".join(source.split()) + "}" if looks_like_pair(source) else source
    try:
        parsed = json.loads(source)
    except json.JSONDecodeError:
        parsed = _Loose(source).read()
    if not isinstance(parsed, dict):
        raise ValueError(_wants(text))
    return parsed


def parse_value(text: str) -> object:
    """Read what stands behind `--flag.key`: JSON where it is JSON, else the text itself."""
    stripped = text.strip()
    return _Loose(stripped).read() if stripped[:1] in ("{", "[") else _scalar(stripped) if stripped else ""


def _wants(text: str) -> str:
    return f"""wants one JSON object in single quotes, such as '{{"method": "ngram"}}'; got: {text}"""


class _Loose:
    """A reader of objects and lists whose strings may be bare words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> object:
        value = self._value("object")
        if self._peek():
            raise ValueError(_wants(self.text))
        return value

    def _peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _take(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise ValueError(_wants(self.text))
        self.at += 1

    def _value(self, inside: str) -> object:
        opening = self._peek()
        if opening == "{":
            return self._object()
        if opening == "[":
            return self._list()
        return _scalar(self._word(inside))

    def _object(self) -> dict[str, object]:
        self._take("{")
        found: dict[str, object] = {}
        while self._peek() != "}":
            key = self._word("key")
            self._take(":")
            found[key] = self._value("object")
            if self._peek() != "}":
                self._take(",")
        self._take("}")
        return found

    def _list(self) -> list[object]:
        self._take("[")
        found: list[object] = []
        while self._peek() != "]":
            found.append(self._value("list"))
            if self._peek() != "]":
                self._take(",")
        self._take("]")
        return found

    def _word(self, inside: str) -> str:
        quote = self._peek()
        if quote in ("'", '"') and self.text.find(quote, self.at + 1) > 0:
            end = self.text.find(quote, self.at + 1)
            word, self.at = self.text[self.at : end + 1], end + 1
            return word if inside != "key" else word[1:-1]
        end = self.at
        while end < len(self.text) and self.text[end] not in _BARE_END[inside]:
            end += 1
        word, self.at = self.text[self.at : end].strip(), end
        if not word or (inside == "key" and not re.fullmatch(r"[\w.-]+", word)):
            raise ValueError(_wants(self.text))
        return word


def _scalar(word: str) -> object:
    if word[0] in "'\"":
        return word[1:-1]
    try:
        return json.loads(word)  # numbers, true, false, null
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(word, word)
