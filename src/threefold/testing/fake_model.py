"""A language model that is a hash: the next token is a function of the whole history, and cheap.

Its answers are known beforehand, so whatever batching, caching, preemption or drafting does to a request, a test can
say what must come out. Knows no steps, blocks or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

_MASK = 2**64 - 1
_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator
_INCREMENT = 1442695040888963407
_START = 0x853C49E6748FEA9B


class FakeModel:
    """Answers with tokens of an alphabet and, now and then, an end.

    Args:
        alphabet: tokens it may generate; by default the lower-case letters of ByteTokenizer.
        end_token_id: token that ends an answer; None = never.
        ends_one_in: one token in so many is an end, on average; an answer of this length is to be expected.
    """

    def __init__(
        self, alphabet: Sequence[int] = range(97, 123), end_token_id: int | None = None, ends_one_in: int = 64
    ) -> None:
        self.alphabet = tuple(alphabet)
        self._end_token_id = end_token_id
        self._ends_one_in = ends_one_in

    def read(self, token_ids: Iterable[int], state: int = _START) -> int:
        """State after these tokens, read behind those that led to `state`."""
        for token_id in token_ids:
            state = ((state ^ token_id) * _MULTIPLIER + _INCREMENT) & _MASK
        return state

    def next_token(self, state: int, banned: AbstractSet[int] = frozenset()) -> int:
        """The most likely token that is not banned."""
        draw = state >> 33
        if self._end_token_id is not None and draw % self._ends_one_in == 0 and self._end_token_id not in banned:
            return self._end_token_id
        token_id = self.alphabet[draw % len(self.alphabet)]
        if token_id in banned:
            token_id = next(other for other in self.alphabet if other not in banned)
        return token_id

    def answer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_total_tokens: int,
        end_token_ids: AbstractSet[int] = frozenset(),
        min_tokens: int = 0,
    ) -> list[int]:
        """What must come out for a request, its ending token included."""
        state = self.read(prompt_token_ids)
        answer: list[int] = []
        while len(prompt_token_ids) + len(answer) < max_total_tokens:
            banned = end_token_ids if len(answer) < min_tokens else frozenset[int]()
            token_id = self.next_token(state, banned)
            answer.append(token_id)
            if token_id in end_token_ids:
                break
            state = self.read((token_id,), state)
        return answer
