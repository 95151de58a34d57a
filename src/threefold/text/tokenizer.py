"""Text to token ids and back, as the model's own files define it.

One object over the `tokenizers` library, made from a Hugging Face folder or from a GGUF file's vocabulary. It has no
state that changes, so any number of threads may use it. Knows nothing about requests, streams or where files came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from threefold.text.tokenizer_parts import TokenizerParts, folder_parts, gguf_parts

_SPACE = "\u2581"  # SentencePiece's visible space


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        vocab_size: ids the tokenizer knows; the model's logits may be wider.
        special_ids: ids that are left out of shown text.
        special_tokens: bos_token, eos_token, … as chat templates call them.
        bos_token_id: beginning of a sequence, None = the model has none.
        eos_token_ids: tokens that end an answer, as far as the tokenizer's files say.
        chat_template: Jinja text, None = the model has none.
        chat_templates: all templates by name.
        is_byte_level: True when the text of ids is their bytes joined, read as UTF-8.
        byte_token_ids: ids that stand for one byte each beside a vocabulary of characters.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        backend = parts.backend
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.special_tokens = parts.special_tokens
        bos = parts.special_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else backend.token_to_id(bos)
        self.eos_token_ids = parts.eos_token_ids
        self.chat_templates = parts.chat_templates
        self.chat_template = parts.chat_templates.get("default")
        kinds = _decoder_kinds(backend)
        self.is_byte_level = kinds == {"ByteLevel"}
        self._has_visible_spaces = bool(kinds & {"Metaspace", "Replace"})
        self.byte_token_ids = _byte_token_ids(backend) if "ByteFallback" in kinds else frozenset[int]()

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Tokenizer:
        """From plain data that can travel to another process: {"folder": path} or {"gguf": `tokenizer.*` pairs}.

        Raises:
            ModelLoadError: files are missing or broken, or the vocabulary is of a kind that is not built.
        """
        return cls.from_gguf(facts["gguf"]) if "gguf" in facts else cls.from_path(Path(facts["folder"]))

    @classmethod
    def from_path(cls, path: Path) -> Tokenizer:
        """From a Hugging Face folder, or a tokenizer.json with its companions beside it.

        Raises:
            ModelLoadError: no tokenizer.json, or files that cannot be read.
        """
        return cls(folder_parts(path if path.name.endswith(".json") else path / "tokenizer.json"))

    @classmethod
    def from_gguf(cls, facts: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.*` pairs of a GGUF file.

        Raises:
            ModelLoadError: a vocabulary of a kind that is not built, or that contradicts itself.
        """
        return cls(gguf_parts(facts))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text.

        Args:
            text: special tokens that are spelled out in it become their ids.
            add_special_tokens: put BOS (and EOS) where the model wants them.

        Raises:
            UnicodeError: the text holds a lone surrogate.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            text.encode()  # the library does not say so, but this is how it takes a lone surrogate
            raise
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; ids beyond the vocabulary have none."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token; None beyond the vocabulary."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's own spelling; None = there is no such token."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def is_special(self, token_id: int) -> bool:
        """True for ids that are left out of shown text."""
        return token_id in self.special_ids

    def id_to_bytes(self, token_id: int) -> bytes:
        """Bytes of one token's text, which need not be a whole character; empty beyond the vocabulary."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte_level:
            return _alphabet_bytes(token)
        if token_id in self.byte_token_ids:
            return bytes([int(token[3:5], 16)])
        is_plain = self._has_visible_spaces and token_id not in self.special_ids
        return (token.replace(_SPACE, " ") if is_plain else token).encode()


def _make_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 as it is, the rest in order from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _make_alphabet()


def _alphabet_bytes(token: str) -> bytes:
    """Bytes that a byte-level token spells; a token outside the alphabet is its own text."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


def _decoder_kinds(backend: tokenizers.Tokenizer) -> set[str]:
    """Names of the steps that turn tokens into text."""
    if backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {step["type"] for step in state.get("decoders", [state])}


def _byte_token_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(index for index in ids if index is not None)
