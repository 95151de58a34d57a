from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from threefold.sample.history import TokenHistory

tokens = st.lists(st.integers(0, 30), max_size=40)


def as_dict(view):
    token_ids, counts = view
    return dict(zip(token_ids.tolist(), counts.tolist(), strict=True))


def counted(prompt, output):
    return {token: Counter(output)[token] for token in {*prompt, *output}}


@given(tokens, tokens, tokens)
def test_counts_are_those_of_the_lists(prompt, output, drafts):
    history = TokenHistory(np.array(prompt, dtype=np.int32))
    for token in output:
        history.push(token)
    views = history.counted(drafts)
    assert len(views) == len(drafts) + 1
    for ahead, view in enumerate(views):
        assert as_dict(view) == counted(prompt, output + drafts[:ahead])
    assert as_dict(history.counted([])[0]) == counted(prompt, output)


def test_it_grows_beyond_its_first_size():
    history = TokenHistory(np.array([], dtype=np.int32))
    for token in range(1000):
        history.push(token % 700)
    assert as_dict(history.counted([])[0]) == counted([], [token % 700 for token in range(1000)])
