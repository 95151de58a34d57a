import numpy as np

from threefold.advise.replay import Drafts, Replay
from threefold.advise.trace import TraceRequest, block_names
from threefold.advise.traffic import NO_DRAFTS, another, assumed_drafts, shared_lengths, to_traffic


def request(kind: str, tokens: range = range(0)) -> TraceRequest:
    return TraceRequest(max(len(tokens), 1), 4, block_names(list(tokens)), kind=kind)


def test_who_was_not_replayed_borrows_from_his_kind():
    mine, other = Drafts([1, 1, 1], [(0.5,)] * 3), Drafts([2, 2, 2], [(0.5,) * 2] * 3)
    trace = [request("a"), request("b"), request("a"), request("c")]
    known = Replay({"ngram": {0: mine, 1: other}}, {"ngram": 0.01}, 2, 4)
    drafts = [one.drafts for one in to_traffic(trace, known, "ngram")]
    assert drafts[:3] == [mine, other, mine]
    assert drafts[3] in (mine, other)
    assert all(one.drafts is NO_DRAFTS for one in to_traffic(trace, known, None))


def test_assumed_drafts_are_right_as_often_as_assumed():
    drafts = assumed_drafts(0.7, 4, 20_001, seed=1)
    right = np.array(drafts.num_right)
    assert len(right) == 20_000
    for length in range(1, 5):
        assert abs((right >= length).mean() - 0.7**length) < 0.02
    assert drafts.survival[0] == (0.7, 0.7**2, 0.7**3, 0.7**4)


def test_another_of_the_same_shares_what_was_shared():
    trace = [request("a", range(64)), request("a", range(32)), request("a", range(500, 564))]
    shared = shared_lengths(trace)
    assert shared == [2, 2, 0]
    traffic = to_traffic(trace, Replay({}, {}, 0, 0), None)
    clone = another(traffic[0], shared[0], 99)
    assert clone.tokens()[:32] == traffic[0].tokens()[:32]
    assert clone.tokens()[32] != traffic[0].tokens()[32]
