"""Drafts by a second model: whatever was accepted, skipped or recalled, the draft is what that model would say."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

from threefold.draft.draft_model import DraftModelDrafter
from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.runner.forward import DeviceRows, HostForward
from threefold.runner.graphs import GraphLimits
from threefold.runner.lent_kv import lent_kv
from threefold.runner.path import card_path
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.testing.fake_capture import FakeCapture

VOCAB, BLOCK, CPU = 50, 4, torch.device("cpu")

Make = Callable[..., DraftModelDrafter]
Expected = Callable[[list[int], int], list[int]]
Alone = Callable[[list[int], int], tuple[list[int], list[float]]]


@pytest.fixture
def make(decoder: Decoder, target_spec: ModelSpec) -> Make:
    return partial(make_drafter, decoder, target_spec)


def make_drafter(
    decoder: Decoder,
    target_spec: ModelSpec,
    max_tokens: int = 64,
    vocab_size: int = VOCAB,
    max_positions: int = 64,
    *,
    at_once: bool = False,
) -> DraftModelDrafter:
    kv = lent_kv(allocate_kv(target_spec, 60, BLOCK, torch.float32, CPU), decoder.spec, "small")
    rows = Rows(4, 64, BLOCK, 8)
    runner = ModelRunner(decoder, kv.caches)
    forward, rounds = HostForward(runner, rows, DeviceRows(4, 0, CPU)), None
    if at_once:
        limits = GraphLimits(4, 8, 64, VOCAB)
        path, _ = card_path(
            runner,
            limits,
            max_tokens=64,
            max_blocks=rows.block_tables.shape[1],
            device=CPU,
            capture=FakeCapture(),
            make_mark=lambda: None,
        )
        forward = path.forward
        rounds = GraphRounds(runner, path.device_rows, limits, block_size=BLOCK, max_rounds=8)
        rounds.capture(FakeCapture())
    return DraftModelDrafter(
        forward, kv, rows, vocab_size=vocab_size, max_tokens=max_tokens, max_positions=max_positions, rounds=rounds
    )


@torch.inference_mode()
@pytest.mark.parametrize("at_once", [False, True])
def test_drafts_follow_the_text_through_whatever_happens(make: Make, expected: Expected, at_once: bool) -> None:
    dice = random.Random(1)
    drafter = make(at_once=at_once)
    texts = {key: [dice.randrange(VOCAB) for _ in range(5 + key)] for key in range(3)}
    blocks = {key: list(range(20 * key, 20 * key + 20)) for key in texts}
    num_drafts = 0
    for key, text in texts.items():
        drafter.start(key, text, "")
        drafter.lend(key, blocks[key])
    for _ in range(14):
        asked = {key: dice.randint(1, 5) for key in texts if dice.random() < 0.7}
        drafts = drafter.propose(asked)
        for key, most in asked.items():
            right = expected(texts[key], most)
            assert (drafts[key].token_ids if key in drafts else []) == right
            num_drafts += len(right)
        for key, text in texts.items():
            accepted = drafts[key].token_ids[: dice.randint(0, 5)] if key in drafts else []
            tokens = [*accepted, dice.randrange(VOCAB)][: 60 - len(text)]
            text += tokens
            drafter.observe(key, tokens)
        if dice.random() < 0.3:
            key = dice.choice(list(texts))
            drafter.recall(key)
            drafter.lend(key, blocks[key])
    assert num_drafts > 30


@torch.inference_mode()
@pytest.mark.parametrize("at_once", [False, True])
def test_survival_is_how_sure_the_model_is(make: Make, alone: Alone, at_once: bool) -> None:
    drafter = make(at_once=at_once)
    text = [3, 1, 4, 1, 5]
    drafter.start(1, text, "")
    drafter.lend(1, range(10))
    draft = drafter.propose({1: 4})[1]
    tokens, survival = alone(text, 4)

    assert list(draft.token_ids) == tokens[: len(draft.token_ids)]
    assert draft.survival == pytest.approx(survival[: len(draft.token_ids)], rel=1e-4)


@torch.inference_mode()
def test_asking_twice_gives_the_same_draft(make: Make, expected: Expected) -> None:
    drafter = make()
    drafter.start(1, [3, 1, 4, 1, 5], "")
    drafter.lend(1, range(10))

    first, second = drafter.propose({1: 4})[1], drafter.propose({1: 4})[1]
    assert first.token_ids == second.token_ids == expected([3, 1, 4, 1, 5], 4)


@torch.inference_mode()
@pytest.mark.parametrize("at_once", [False, True])
def test_without_room_there_is_no_draft_and_with_some_a_shorter_one(make: Make, at_once: bool) -> None:
    drafter = make(at_once=at_once)
    text = [3, 1, 4, 1, 5, 9, 2]
    drafter.start(1, text, "")
    assert drafter.propose({1: 4}) == {}
    units = drafter._kv.units_per_block
    drafter.lend(1, range(-(-8 // (BLOCK * units))))
    room = -(-8 // (BLOCK * units)) * units * BLOCK
    draft = drafter.propose({1: 8}).get(1)

    assert draft is None or len(draft.token_ids) <= room - len(text) + 1
    drafter.recall(1)
    assert drafter.propose({1: 4}) == {}
    drafter.recall(99)  # nobody knows it: nothing happens


@torch.inference_mode()
def test_a_long_text_is_caught_up_with_over_several_steps(make: Make, expected: Expected) -> None:
    drafter = make(max_tokens=8)
    text = [int(i) for i in torch.arange(30) % VOCAB]
    drafter.start(1, text, "")
    drafter.lend(1, range(20))
    rounds = 0
    while not (drafts := drafter.propose({1: 3})):
        rounds += 1
        assert rounds < 10

    assert rounds == 3  # 8 + 8 + 8, then the last six and the draft
    assert drafts[1].token_ids == expected(text, 3)


@torch.inference_mode()
def test_beyond_its_context_and_beyond_the_targets_vocabulary_it_is_silent(make: Make, expected: Expected) -> None:
    short = make(max_positions=8)
    short.start(1, [1] * 9, "")
    short.lend(1, range(20))
    assert short.propose({1: 3}) == {}
    text = [3, 1, 4, 1, 5]
    first = expected(text, 1)[0]
    narrow = make(vocab_size=first)
    narrow.start(1, text, "")
    narrow.lend(1, range(20))
    assert narrow.propose({1: 3}) == {}


@torch.inference_mode()
def test_a_row_is_free_again_when_its_request_stops(make: Make) -> None:
    drafter = make()
    for key in range(20):
        drafter.start(key, [1, 2, 3], "")
        drafter.stop(key)
    drafter.stop(3)
