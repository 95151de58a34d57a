"""A GGUF file's vocabulary as a tokenizer of the `tokenizers` library.

Two kinds are built: `gpt2`, byte-level BPE with merges and a named way to cut text before merging, and `llama`, a
SentencePiece vocabulary whose scores say what merges first. Knows nothing about files; the facts are the file's own
`tokenizer.*` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from threefold.errors import ModelLoadError

# Token types of the format.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"  # SentencePiece's visible space

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class Cut:
    """How text is cut before merging."""

    patterns: tuple[str, ...]
    """Applied one after the other; each match becomes a piece of its own."""
    is_nfc: bool = False
    """Compose characters first."""
    prefers_whole_words: bool = False
    """A piece that is a token is that token, whatever its merges say."""
    adds_bos: bool = False
    """A sequence begins with BOS unless the file says otherwise."""


_LLAMA3 = Cut((_CONTRACTIONS + r"|\p{N}{1,3}" + _REST,), prefers_whole_words=True, adds_bos=True)
_QWEN2 = Cut((_CONTRACTIONS + r"|\p{N}" + _REST,), is_nfc=True)
CUTS: Mapping[str, Cut] = {
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Cut((_GPT2,)),
    "smollm": Cut((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": Cut(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        prefers_whole_words=True,
        adds_bos=True,
    ),
}


def named_token(facts: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Id and text of the token that a pair names: bos, eos, unknown, …; None where the file names none.

    Raises:
        ModelLoadError: the id is outside the vocabulary.
    """
    index = facts.get(f"tokenizer.ggml.{name}_token_id")
    if index is None:
        return None
    tokens = _list_of(facts, "tokenizer.ggml.tokens", str)
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ModelLoadError(
            f"GGUF tokenizer.ggml.{name}_token_id {index!r:.80} is outside the vocabulary of {len(tokens)}"
        )
    return index, tokens[index]


def build_tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's `tokenizer.*` pairs describe.

    Raises:
        ModelLoadError: an unknown kind, an unknown way to cut text, or a vocabulary that contradicts itself.
    """
    kind = facts.get("tokenizer.ggml.model")
    vocabulary = _Vocabulary.read(facts)
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(facts, vocabulary)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(facts, vocabulary), True
    else:
        raise ModelLoadError(f"GGUF tokenizer.ggml.model {kind!r:.80} is not built; known: gpt2, llama")
    tokenizer.add_special_tokens(_added(vocabulary, (_CONTROL, _UNKNOWN), is_special=True))
    tokenizer.add_tokens(_added(vocabulary, (_USER_DEFINED,), is_special=False))
    _frame(tokenizer, facts, adds_bos)
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens by id, with their types."""

    tokens: Sequence[str]
    types: Sequence[int]

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> _Vocabulary:
        tokens = _list_of(facts, "tokenizer.ggml.tokens", str)
        types = _list_of(facts, "tokenizer.ggml.token_type", int) or [_NORMAL] * len(tokens)
        if not tokens or len(types) != len(tokens):
            raise ModelLoadError(
                f"GGUF vocabulary of {len(tokens)} tokens with {len(types)} types does not fit together"
            )
        return cls(tokens, types)

    def ids(self) -> dict[str, int]:
        """Token to id, the first one where a token is listed twice."""
        return {token: index for index, token in reversed(list(enumerate(self.tokens)))}


def _list_of(facts: Mapping[str, Any], key: str, kind: type) -> Sequence[Any]:
    values = facts.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ModelLoadError(f"GGUF {key} must be a list of {kind.__name__}")
    return values


def _byte_level(facts: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = facts.get("tokenizer.ggml.pre", "default")
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise ModelLoadError(f"GGUF tokenizer.ggml.pre {name!r:.80} is not built; known: {', '.join(CUTS)}")
    merges = [_pair(merge) for merge in _list_of(facts, "tokenizer.ggml.merges", str)]
    tokenizer = Tokenizer(_bpe(vocabulary.ids(), merges, ignore_merges=cut.prefers_whole_words))
    if cut.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut.adds_bos


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _bpe(ids: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(ids, merges, **options)
    except Exception as error:  # the library raises bare exceptions
        raise ModelLoadError(f"GGUF vocabulary contradicts its merges: {error}") from error


def _sentencepiece(facts: Mapping[str, Any], vocabulary: _Vocabulary) -> Tokenizer:
    scores = _list_of(facts, "tokenizer.ggml.scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise ModelLoadError(f"GGUF vocabulary of {len(vocabulary.tokens)} tokens has {len(scores)} scores")
    ids = vocabulary.ids()
    unknown = named_token(facts, "unknown")
    options = {
        "unk_token": None if unknown is None else unknown[1],
        "fuse_unk": True,
        "byte_fallback": _BYTE in vocabulary.types,
    }
    tokenizer = Tokenizer(_bpe(ids, _merges_from_scores(vocabulary, scores, ids), **options))
    has_prefix = facts.get("tokenizer.ggml.add_space_prefix", True) is not False
    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_from_scores(
    vocabulary: _Vocabulary, scores: Sequence[float], ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the best score of what they make first.

    SentencePiece merges the neighbours whose joint token scores highest; BPE merges those that its list names first.
    """
    ranked = []
    for index, token in enumerate(vocabulary.tokens):
        if vocabulary.types[index] != _NORMAL:
            continue
        for at in range(1, len(token)):
            left, right = ids.get(token[:at]), ids.get(token[at:])
            if left is not None and right is not None:
                ranked.append((-scores[index], index, left, right))
    ranked.sort()
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in ranked]


def _added(vocabulary: _Vocabulary, types: tuple[int, ...], *, is_special: bool) -> list[AddedToken]:
    """Tokens that are found in text whole, before it is cut."""
    listed = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [
        AddedToken(token, special=is_special, normalized=False) for token, kind in listed if kind in types and token
    ]


def _frame(tokenizer: Tokenizer, facts: Mapping[str, Any], adds_bos: bool) -> None:
    """Let the tokenizer put BOS before and EOS behind, where the file asks for it."""
    bos = named_token(facts, "bos") if facts.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = named_token(facts, "eos") if facts.get("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*([bos[1]] if bos else []), "$A", *([eos[1]] if eos else [])],
        special_tokens=[(token, index) for index, token in filter(None, (bos, eos))],
    )
