"""What a tokenizer is put together from: the library's object, special tokens, chat templates.

Reads the files that Hugging Face folders keep them in, or the pairs of a GGUF file; knows nothing about encoding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from threefold.errors import ModelLoadError
from threefold.text.gguf_vocab import build_tokenizer, named_token

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GGUF_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a tokenizer is put together from."""

    backend: tokenizers.Tokenizer
    """The library's tokenizer."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """bos_token, eos_token, … as chat templates call them."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer, as far as the tokenizer's files say."""
    chat_templates: dict[str, str] = field(default_factory=dict)
    """Jinja templates by name; the one that is used without asking is `default`."""


def folder_parts(path: Path) -> TokenizerParts:
    """Parts from a tokenizer.json and its companions in the same folder.

    Raises:
        ModelLoadError: no tokenizer.json, or files that cannot be read.
    """
    if not path.is_file():
        has_model = (path.parent / "tokenizer.model").is_file()
        hint = "; tokenizer.model alone is not read, save the tokenizer with transformers once" if has_model else ""
        raise ModelLoadError(f"{path}: no such file, so there is no tokenizer{hint}")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise ModelLoadError(f"{path}: not a tokenizer that can be read: {error}") from error
    config = _read_object(path.with_name("special_tokens_map.json")) | _read_object(
        path.with_name("tokenizer_config.json")
    )
    special_tokens = {name: text for name in _NAMED_TOKENS if (text := _content(config.get(name))) is not None}
    # What the configuration names as special is so, even if the vocabulary's own list forgot it.
    known = [text for text in special_tokens.values() if backend.token_to_id(text) is not None]
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in known])
    eos = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return TokenizerParts(
        backend, special_tokens, () if eos is None else (eos,), _folder_templates(path.parent, config)
    )


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file that may be missing."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a {type(value).__name__} where a JSON object was expected")
    return value


def _content(token: Any) -> str | None:
    """A special token's text; configurations write it bare or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _folder_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates of a folder; files win over tokenizer_config.json, as in transformers."""
    stored = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stored, str):
        templates["default"] = stored
    elif isinstance(stored, list):
        for entry in stored:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name", "default"))] = entry["template"]
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    main = folder / "chat_template.jinja"
    if main.is_file():
        templates["default"] = _read_text(main)
    return templates


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def gguf_parts(facts: Mapping[str, Any]) -> TokenizerParts:
    """Parts from the `tokenizer.*` pairs of a GGUF file.

    Raises:
        ModelLoadError: a vocabulary of a kind that is not built, or that contradicts itself.
    """
    named = {name: named_token(facts, key) for name, key in _GGUF_NAMES.items()}
    ends = [named_token(facts, name) for name in ("eos", "eot", "eom")]
    prefix = "tokenizer.chat_template"
    templates = {
        key.removeprefix(prefix).removeprefix(".") or "default": text
        for key, text in facts.items()
        if (key == prefix or key.startswith(prefix + ".")) and isinstance(text, str)
    }
    return TokenizerParts(
        backend=build_tokenizer(facts),
        special_tokens={name: token[1] for name, token in named.items() if token is not None},
        eos_token_ids=tuple(dict.fromkeys(token[0] for token in ends if token is not None)),
        chat_templates=templates,
    )
