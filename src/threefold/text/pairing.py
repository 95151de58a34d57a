"""Whether a draft model speaks its target's language: token by token, not by the size of the vocabulary.

Two vocabularies of one size can be of different families, and two of one family can differ in their padded tails. What
counts is that an id means the same text in both, and that special tokens do. Knows nothing about models.
"""

from __future__ import annotations

from threefold.text.tokenizer import Tokenizer

LEAST_SHARE = 0.99
"""Families rename a few reserved tokens between releases; those are never drafted, or rejected at once."""


def difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """What keeps one tokenizer's ids from being the other's; None = nothing."""
    num_both = min(target.vocab_size, draft.vocab_size)
    num_same = sum(target.id_to_token(i) == draft.id_to_token(i) for i in range(num_both))
    if num_same < LEAST_SHARE * num_both:
        return f"shares {100 * num_same / max(num_both, 1):.0f} % of token strings"
    for token_id in sorted(target.special_ids):
        text = target.id_to_token(token_id)
        if text is None or token_id >= num_both or draft.id_to_token(token_id) == text:
            continue
        elsewhere = draft.token_to_id(text)
        if elsewhere is not None:
            return f"has special token {text} at id {elsewhere} and not at {token_id}"
    return None
