"""Tokenizers from folders: ids as the files define them, bytes that join to the text, templates, clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from threefold.errors import ModelLoadError
from threefold.text import tokenizer as subject

SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the cat sat on the mat", "a cat and another cat, 12 cats!", "naïve café 日本語 🙂"] * 4


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return backend


@pytest.fixture(scope="module")
def with_bytes() -> Tokenizer:
    """A SentencePiece-like vocabulary: characters, the visible space, and a token for each byte."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "▁a", "ab"]
    ids = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(ids, [("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def write(backend: Tokenizer, config: dict[str, Any] | None = None) -> Path:
        backend.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text() | st.lists(st.sampled_from([*SPECIAL, "<tool>", " cat", "é", "🙂"])).map("".join))
def test_byte_level_round_trip(text: str, byte_level: Tokenizer) -> None:
    tokenizer = subject.Tokenizer(subject.TokenizerParts(byte_level))
    ids = tokenizer.encode(text)
    assert ids == byte_level.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.id_to_bytes, ids)) == text.encode()
    shown = b"".join(tokenizer.id_to_bytes(index) for index in ids if not tokenizer.is_special(index))
    assert tokenizer.decode(ids) == shown.decode()


def test_every_single_token_decodes_to_its_bytes(byte_level: Tokenizer) -> None:
    tokenizer = subject.Tokenizer(subject.TokenizerParts(byte_level))
    assert tokenizer.is_byte_level
    assert tokenizer.byte_token_ids == frozenset()
    for index in range(tokenizer.vocab_size):
        whole = tokenizer.decode([index], skip_special_tokens=False)
        assert tokenizer.id_to_bytes(index).decode("utf-8", "replace") == whole
    assert {tokenizer.id_to_bytes(index) for index in range(tokenizer.vocab_size)} >= {bytes([b]) for b in range(256)}


def test_bytes_beside_characters(with_bytes: Tokenizer) -> None:
    tokenizer = subject.Tokenizer(subject.TokenizerParts(with_bytes, {"bos_token": "<s>"}))
    assert not tokenizer.is_byte_level
    assert len(tokenizer.byte_token_ids) == 256
    ids = tokenizer.encode("ab é")
    assert ids[0] == tokenizer.bos_token_id == 1
    assert tokenizer.encode("ab é", add_special_tokens=False) == ids[1:]
    assert b"".join(tokenizer.id_to_bytes(index) for index in ids[1:]).decode() == " ab é"
    assert tokenizer.decode(ids) == "ab é"
    assert tokenizer.id_to_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.id_to_bytes(1) == b"<s>"


def test_ids_beyond_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    tokenizer = subject.Tokenizer(subject.TokenizerParts(byte_level))
    assert tokenizer.id_to_bytes(10**6) == b""
    assert tokenizer.id_to_token(10**6) is None
    assert tokenizer.decode([10**6]) == ""


def test_a_lone_surrogate_is_a_unicode_error(byte_level: Tokenizer) -> None:
    with pytest.raises(UnicodeError):
        subject.Tokenizer(subject.TokenizerParts(byte_level)).encode("\ud800")


def test_a_folder_agrees_with_transformers(byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = save(byte_level)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>")
    theirs.chat_template = "{{ messages }}"
    theirs.save_pretrained(folder)
    ours = subject.Tokenizer.from_path(folder)
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.special_tokens == {"eos_token": "<|im_end|>"}
    assert ours.chat_template == "{{ messages }}"
    assert ours.vocab_size == len(theirs)
    for text in [*CORPUS[:3], "<|im_start|>user\nHi<|im_end|>", ""]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_facts_of_a_folder(byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    folder = save(byte_level, {"eos_token": {"content": "<|end|>"}, "bos_token": None})
    tokenizer = subject.Tokenizer.from_facts({"folder": str(folder)})
    assert tokenizer.eos_token_ids == (0,)
    assert tokenizer.bos_token_id is None
    assert tokenizer.chat_template is None
    assert subject.Tokenizer.from_path(folder / "tokenizer.json").eos_token_ids == (0,)


def test_what_the_configuration_calls_special_is_special(byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    tokenizer = subject.Tokenizer.from_path(save(byte_level, {"eos_token": "<tool>", "pad_token": "<nowhere>"}))
    tool = tokenizer.encode("<tool>")[0]
    assert tokenizer.is_special(tool)
    assert tokenizer.vocab_size == byte_level.get_vocab_size()


def test_truncation_and_padding_of_training_are_dropped(byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    short = Tokenizer.from_str(byte_level.to_str())
    short.enable_truncation(2)
    short.enable_padding(length=50)
    assert len(subject.Tokenizer.from_path(save(short)).encode("the cat sat on the mat")) > 2
    assert len(subject.Tokenizer.from_path(save(short)).encode("the")) < 50


def test_templates_by_name_and_from_files(byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, "odd"]
    folder = save(byte_level, {"chat_template": named})
    assert subject.Tokenizer.from_path(folder).chat_templates == {"default": "D", "tool_use": "T"}
    (folder / "chat_template.jinja").write_text("F")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
    tokenizer = subject.Tokenizer.from_path(folder)
    assert tokenizer.chat_template == "F"
    assert tokenizer.chat_templates == {"default": "F", "tool_use": "T", "rag": "R"}
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match="cannot be read as UTF-8 text"):
        subject.Tokenizer.from_path(folder)


def test_missing_and_broken_files(tmp_path: Path, byte_level: Tokenizer, save: Callable[..., Path]) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: no such file, so there is no tokenizer$"):
        subject.Tokenizer.from_path(tmp_path)
    (tmp_path / "tokenizer.model").write_text("")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model alone is not read"):
        subject.Tokenizer.from_path(tmp_path)
    for content in ("", "{}", '{"model": 3}', "\x00"):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ModelLoadError, match="not a tokenizer that can be read") as caught:
            subject.Tokenizer.from_path(tmp_path)
        assert "\n" not in str(caught.value)
    save(byte_level)
    for content, message in (("{", "not valid JSON"), ("[]", "holds a list")):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ModelLoadError, match=message):
            subject.Tokenizer.from_path(tmp_path)


def test_threads_share_one_tokenizer(byte_level: Tokenizer) -> None:
    tokenizer = subject.Tokenizer(subject.TokenizerParts(byte_level))
    texts = [f"{text} {index}" for index in range(50) for text in CORPUS[:3]]
    alone = [tokenizer.decode(tokenizer.encode(text)) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: tokenizer.decode(tokenizer.encode(text)), texts)) == alone == texts
