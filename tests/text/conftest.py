"""Tiny tokenizers of the kinds that checkpoints have, made with the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


class TinyTokenizer:
    """What the detokenizer needs, over a tokenizer of the library; the library's own decoding is the oracle."""

    def __init__(self, inner: Tokenizer, *, is_byte_level: bool) -> None:
        self._inner = inner
        self._alphabet = byte_alphabet()
        self.is_byte_level = is_byte_level
        self.special_ids = frozenset(i for i, token in inner.get_added_tokens_decoder().items() if token.special)
        self.byte_token_ids = frozenset(i for token, i in inner.get_vocab().items() if BYTE_TOKEN.fullmatch(token))
        self.vocab_size = inner.get_vocab_size()

    def id_to_bytes(self, token_id: int) -> bytes:
        token = self._inner.id_to_token(token_id)
        return b"" if token is None else bytes(self._alphabet[char] for char in token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._inner.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text


def byte_level() -> TinyTokenizer:
    """As Qwen, Llama 3 and SmolLM have: each token is some bytes."""
    vocab = {char: i for i, char in enumerate(byte_alphabet())}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("ð", "Ł"), ("Ċ", "Ċ"), ("â", "Ĥ")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    inner = Tokenizer(models.BPE(vocab, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>", "<|start|>"])
    inner.add_tokens([AddedToken("<think>", special=False)])
    return TinyTokenizer(inner, is_byte_level=True)


def sentencepiece() -> TinyTokenizer:
    """As Llama 2, Mistral and TinyLlama have: characters, ▁ for a space, bytes where there is no token."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in ("▁", "a", "b", "é", "▁▁", "ab", "▁a", "▁ab"):
        vocab[token] = len(vocab)
    inner = Tokenizer(models.BPE(vocab, [("▁", "▁"), ("a", "b"), ("▁", "a"), ("▁", "ab")], byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return TinyTokenizer(inner, is_byte_level=False)


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece}


@pytest.fixture(scope="session", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> TinyTokenizer:
    """One of each kind in turn."""
    return KINDS[request.param]()


@pytest.fixture(scope="session")
def byte_tokenizer() -> TinyTokenizer:
    """The byte-level kind."""
    return byte_level()


@pytest.fixture(scope="session")
def spaced_tokenizer() -> TinyTokenizer:
    """The kind of SentencePiece with byte fallback."""
    return sentencepiece()
