"""Vocabularies of GGUF files against the tokenizers that they were made of."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from threefold.errors import ModelLoadError
from threefold.text.gguf_vocab import CUTS, build_tokenizer
from threefold.text.tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the cat sat on the mat in 2024", "It's   what they've said: 3.14159!", "naïve café 日本語\r\n\n\tx = y"] * 4
SAMPLE = st.text() | st.lists(st.sampled_from([*SPECIAL, " cat", "'s", "12", "3", "   ", "\n", "é", "日"])).map("".join)


@pytest.fixture(scope="module")
def source() -> Backend:
    """Byte-level BPE cut as SmolLM2's own tokenizer.json cuts: each digit alone, then GPT-2's way."""
    backend = Backend(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="module")
def facts(source: Backend) -> dict[str, Any]:
    """What a converter writes of it."""
    tokens = [source.id_to_token(index) for index in range(source.get_vocab_size())]
    merges = json.loads(source.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.chat_template": "D",
        "tokenizer.chat_template.tool_use": "T",
    }


@settings(max_examples=150, deadline=None)
@given(text=SAMPLE)
def test_ids_are_those_of_the_tokenizer_it_was_made_of(text: str, source: Backend, facts: dict[str, Any]) -> None:
    ours = Tokenizer.from_gguf(facts)
    ids = source.encode(text).ids
    assert ours.encode(text) == ids
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(ours.id_to_bytes, ids)) == text.encode()


def test_facts_around_the_vocabulary(facts: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_facts({"gguf": facts})
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, 0))
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.chat_template == "D"
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T"}
    assert tokenizer.vocab_size == len(facts["tokenizer.ggml.tokens"])


def test_bos_and_eos_where_the_file_or_the_family_wants_them(facts: dict[str, Any]) -> None:
    plain = Tokenizer.from_gguf(facts).encode("the cat")
    with_bos = facts | {"tokenizer.ggml.add_bos_token": True}
    assert Tokenizer.from_gguf(with_bos).encode("the cat") == [1, *plain]
    assert Tokenizer.from_gguf(with_bos).encode("the cat", add_special_tokens=False) == plain
    both = with_bos | {"tokenizer.ggml.add_eos_token": True}
    assert Tokenizer.from_gguf(both).encode("the cat") == [1, *plain, 2]
    assert Tokenizer.from_gguf(facts | {"tokenizer.ggml.pre": "llama-bpe"}).encode("the")[0] == 1
    silent = facts | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}
    assert Tokenizer.from_gguf(silent).encode("the")[0] != 1


def test_tokens_the_user_defined_are_whole_but_shown(facts: dict[str, Any]) -> None:
    types = list(facts["tokenizer.ggml.token_type"])
    types[0] = 4
    tokenizer = Tokenizer.from_gguf(facts | {"tokenizer.ggml.token_type": types})
    ids = tokenizer.encode("cat<|endoftext|>cat")
    assert 0 in ids
    assert tokenizer.decode(ids) == "cat<|endoftext|>cat"


def pieces(pre: str, text: str, facts: dict[str, Any]) -> list[str]:
    """Where the text is cut, in the text's own characters."""
    backend = build_tokenizer(facts | {"tokenizer.ggml.pre": pre})
    spans = [span for _, span in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [text[begin:end] for begin, end in spans]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I've 2024  x", ["I", "'ve", " 2024", " ", " x"]),
        ("smollm", "in   2024!", ["in", "   ", "2", "0", "2", "4", "!"]),
        ("llama-bpe", "I'VE 12345  x!\n\ny", ["I", "'VE", " ", "123", "45", " ", " x", "!\n\n", "y"]),
        ("qwen2", "I'VE 12345  (x)", ["I", "'VE", " ", "1", "2", "3", "4", "5", " ", " (", "x", ")"]),
        ("tekken", "HelloWorld 12/", ["Hello", "World", " ", "1", "2", "/"]),
        ("default", "a+1234", ["a", "+", "123", "4"]),
    ],
)
def test_where_text_is_cut(pre: str, text: str, expected: list[str], facts: dict[str, Any]) -> None:
    assert pieces(pre, text, facts) == expected


@settings(deadline=None, max_examples=30)
@given(text=st.text(), pre=st.sampled_from(sorted(CUTS)))
def test_every_cut_keeps_all_text(text: str, pre: str, facts: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(facts | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False})
    if not CUTS[pre].is_nfc:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_whole_words_before_merges(facts: dict[str, Any]) -> None:
    tokens = [*facts["tokenizer.ggml.tokens"], "xyzzy"]
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [*facts["tokenizer.ggml.token_type"], 1]}
    for pre, is_whole in (("llama-bpe", True), ("smollm", False)):
        tokenizer = Tokenizer.from_gguf(
            facts | more | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
        )
        assert (tokenizer.encode("xyzzy") == [len(tokens) - 1]) is is_whole


WORDS = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc", "cab", "ca", "bb"]


@pytest.fixture(scope="module")
def spm() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    scores = [0.0] * 259 + [-float(place) for place in random.Random(4).sample(range(100), len(WORDS))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(WORDS)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def merged_by_score(text: str, facts: dict[str, Any]) -> list[str]:
    """SentencePiece's own rule, step by step: the leftmost of the best-scored neighbours becomes one."""
    scores = dict(zip(facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.scores"], strict=True))
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joint = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not joint:
            return parts
        at = -max(joint)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text(alphabet="abc ", min_size=1))
def test_scores_say_what_merges_first(text: str, spm: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(spm)
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert [tokenizer.id_to_token(index) for index in ids[1:]] == merged_by_score(text, spm)
    assert tokenizer.decode(ids) == text


@given(text=st.text(min_size=1))
def test_text_beyond_the_vocabulary_goes_by_bytes(text: str, spm: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(spm)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert 0 not in ids
    assert tokenizer.decode(ids) == text.replace("▁", " ")
    assert b"".join(map(tokenizer.id_to_bytes, ids)).decode() == " " + text.replace("▁", " ")


def test_no_space_before_the_first_word_where_the_file_says_so(spm: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(spm | {"tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("ab", add_special_tokens=False)
    assert [tokenizer.id_to_token(index) for index in ids] == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "model 'bert' is not built; known: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "model None is not built"),
        ({"tokenizer.ggml.pre": "mystery"}, "pre 'mystery' is not built; known: default, gpt-2, smollm, llama-bpe"),
        ({"tokenizer.ggml.pre": ["x"]}, "is not built; known"),
        ({"tokenizer.ggml.tokens": []}, "bos_token_id 1 is outside the vocabulary of 0"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list of str"),
        ({"tokenizer.ggml.token_type": [1]}, "with 1 types does not fit together"),
        ({"tokenizer.ggml.merges": ["nowhere found"]}, "vocabulary contradicts its merges"),
        ({"tokenizer.ggml.merges": ["alone"]}, "vocabulary contradicts its merges"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id 1000000 is outside the vocabulary of"),
        ({"tokenizer.ggml.bos_token_id": "<s>"}, "bos_token_id '<s>' is outside"),
        ({"tokenizer.ggml.model": "llama"}, "has 0 scores"),
    ],
)
def test_facts_that_cannot_hold(more: dict[str, Any], message: str, facts: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        Tokenizer.from_gguf(facts | more)
    assert "\n" not in str(caught.value)


def test_an_empty_vocabulary() -> None:
    with pytest.raises(ModelLoadError, match="vocabulary of 0 tokens with 0 types does not fit together"):
        build_tokenizer({"tokenizer.ggml.model": "gpt2"})


@pytest.mark.model
def test_the_default_models_tokenizer_is_smollm2s() -> None:
    from threefold.models.fetch import fetch_default_model
    from threefold.models.gguf_file import read_gguf

    facts = read_gguf(fetch_default_model()).metadata
    ours = Tokenizer.from_gguf(facts)
    # SmolLM2's own tokenizer.json cuts off each digit first, which transformers forgets when it reads a GGUF file.
    tokens, merges = (facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
    ids_of = {token: index for index, token in enumerate(tokens)}
    theirs = Backend(models.BPE(ids_of, [tuple(merge.split(" ")) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    theirs.add_special_tokens(tokens[:17])
    for text in (*CORPUS[:3], "in the   2013 marathon", "def f(x):\n    return x ** 2  # ½ 🙂", "<|im_start|>user\n"):
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert [ours.encode(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [[0], [1], [2]]
    assert (ours.eos_token_ids, ours.bos_token_id, ours.vocab_size) == ((2,), 1, 49_152)
    assert ours.chat_template is not None and "<|im_start|>" in ours.chat_template
