import pytest

from threefold.errors import MemoryPlanError, ModelLoadError
from threefold.quality import measure as measuring
from threefold.quality.documents import Piece
from threefold.quality.measure import Pair, batches, measure
from threefold.quality.side import load_side

PIECES = [Piece([at, *range(10, 40 + at)], 1 + at % 3) for at in range(20)]


def test_short_pieces_are_fed_together():
    steps = list(batches(PIECES, 100))
    assert [piece for step in steps for piece in step] == PIECES
    assert all(sum(len(piece.token_ids) for piece in step) <= 100 for step in steps)
    assert len(steps[0]) == 3
    assert [len(step) for step in batches(PIECES, 1)] == [1] * 20


@pytest.fixture
def run(config_of):
    def run(a, b, *, is_in_turn=False, width=257, tell=lambda done, readings: None):
        said = []
        pair = Pair(config_of(a), config_of(b), width)
        return measure(pair, PIECES, is_in_turn=is_in_turn, tell=tell, say=said.append), said

    return run


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_a_model_is_like_itself(make_model, run, is_in_turn):
    model = make_model()
    measured, _ = run(model, model, is_in_turn=is_in_turn)
    found = measured.readings.summary()
    assert found.divergence == (0.0, 0.0, 0.0)
    assert found.disagreement == (0.0, 0.0, 0.0)
    assert found.perplexity_a == found.perplexity_b
    assert found.num_tokens == sum(piece.num_judged for piece in PIECES)
    assert found.num_pieces == len(PIECES)


def test_both_ways_say_nearly_the_same(make_model, run):
    a, b = make_model("a"), make_model("b", seed=8)
    (together, _), (in_turn, said) = run(a, b), run(a, b, is_in_turn=True)
    whole, bound = together.readings.summary(), in_turn.readings.summary()
    assert whole.divergence.value > 0.1
    assert whole.disagreement.value > 0.1
    assert 0 < bound.divergence.value < whole.divergence.value
    assert bound.perplexity_b.value == pytest.approx(whole.perplexity_b.value, rel=1e-4)
    assert bound.disagreement.value == pytest.approx(whole.disagreement.value)
    assert (together.num_top, in_turn.num_top) == (0, 64)
    assert said[-1] == "reading with B"


def test_where_both_do_not_fit_they_are_read_in_turn(make_model, run, monkeypatch):
    a, b = make_model("a"), make_model("b", seed=8)
    num_loaded = 0

    def load(config, *sizes):
        nonlocal num_loaded
        num_loaded += 1
        if num_loaded == 2:
            raise MemoryPlanError("the weights take 2 GiB and 1 GiB are free")
        return load_side(config, *sizes)

    monkeypatch.setattr(measuring, "load_side", load)
    measured, said = run(a, b)
    assert measured.num_top == 64
    assert num_loaded == 3
    assert "1 GiB are free" in said[0]


def test_progress_is_told_of_both_ways(make_model, run):
    model, told = make_model(), []
    run(model, model, is_in_turn=True, tell=lambda done, readings: told.append((done, readings is not None)))
    half = len(told) // 2
    assert [done for done, _ in told[:half]] == [done for done, _ in told[half:]]
    assert told[-1] == (len(PIECES), True)
    assert told[half - 1] == (len(PIECES), False)


def test_ctrl_c_leaves_what_was_read(make_model, run):
    model = make_model()

    def tell(done, readings):
        raise KeyboardInterrupt

    measured, _ = run(model, model, tell=tell)
    assert measured.is_cut
    assert 0 < measured.readings.num_tokens < sum(piece.num_judged for piece in PIECES)


def test_a_broken_model_is_named(make_model, run):
    good, broken = make_model("a"), make_model("b", spread=float("inf"))
    with pytest.raises(ModelLoadError, match="model B gives logits that are no numbers"):
        run(good, broken)


def test_only_the_common_vocabulary_is_compared(make_model, run):
    a, b = make_model("a"), make_model("b", vocab_size=300)
    measured, _ = run(a, b)
    assert measured.readings.num_tokens > 0
