"""A tokenizer that needs no file: one token a byte, and a few special ones above them.

Answers what `text.tokenizer.Tokenizer` answers, so a server can run on it; knows no merges and no normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
_SPLIT = re.compile("(" + "|".join(re.escape(token) for token in _SPECIAL_TOKENS) + ")")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ByteTokenizer:
    """Bytes 0 to 255, then the special tokens in order of `special_tokens`.

    Attributes:
        vocab_size: ids are below it.
        bos_token_id: beginning of sequence.
        eos_token_ids: end of sequence.
        special_ids: ids that `skip_special_tokens` leaves out.
        special_tokens: what a chat template may ask for by name.
        chat_template: Jinja text for user, assistant and system messages.
        chat_templates: the same by name.
        is_byte_level: True: the text of ids is their bytes joined.
        byte_token_ids: empty, as for every byte-level vocabulary.
    """

    def __init__(self) -> None:
        self._id_of = {token: 256 + index for index, token in enumerate(_SPECIAL_TOKENS)}
        self._bytes_of = [bytes([byte]) for byte in range(256)] + [token.encode() for token in _SPECIAL_TOKENS]
        self.vocab_size = len(self._bytes_of)
        self.bos_token_id: int | None = self._id_of["<|begin|>"]
        self.eos_token_ids = (self._id_of["<|end|>"],)
        self.special_ids = frozenset(self._id_of.values())
        self.special_tokens = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
        self.chat_template: str | None = _CHAT_TEMPLATE
        self.chat_templates = {"default": _CHAT_TEMPLATE}
        self.is_byte_level = True
        self.byte_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, special tokens in it recognised; add_special_tokens puts <|begin|> in front."""
        ids = [self._id_of["<|begin|>"]] if add_special_tokens else []
        for piece in _SPLIT.split(text):
            if piece in self._id_of:
                ids.append(self._id_of[piece])
            else:
                ids.extend(piece.encode("utf-8", "surrogatepass"))
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD, ids beyond the vocabulary have no text."""
        hidden = self.special_ids if skip_special_tokens else frozenset[int]()
        shown = (self.id_to_bytes(token_id) for token_id in token_ids if token_id not in hidden)
        return b"".join(shown).decode("utf-8", "replace")

    def id_to_token(self, token_id: int) -> str | None:
        """A token as a word: itself, or <0xNN> for a byte; None beyond the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return None
        return f"<0x{token_id:02X}>" if token_id < 256 else _SPECIAL_TOKENS[token_id - 256]

    def is_special(self, token_id: int) -> bool:
        """True for ids that are left out of shown text."""
        return token_id in self.special_ids

    def id_to_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty beyond the vocabulary."""
        return self._bytes_of[token_id] if 0 <= token_id < self.vocab_size else b""
