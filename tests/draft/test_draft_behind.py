"""Drafts made behind a step that nobody has judged yet are those that the model makes once it is judged."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from threefold.draft.draft_behind import BehindDraftModel
from threefold.kernels.drafting import BY_COMPARISON
from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.runner.behind import GraphBehind, Running
from threefold.runner.forward import DeviceRows
from threefold.runner.graphs import GraphLimits
from threefold.runner.lent_kv import lent_kv
from threefold.runner.path import card_path
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.sample.verify import num_common
from threefold.testing.fake_capture import FakeCapture

VOCAB, BLOCK, MOST, CPU = 50, 4, 4, torch.device("cpu")
Alone = Callable[[list[int], int], tuple[list[int], list[float]]]
Make = Callable[..., BehindDraftModel]


class Mark:
    """The work is done when it is launched."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Mark, /) -> float:
        return 0.0


@pytest.fixture
def target_rows() -> DeviceRows:
    return DeviceRows(4, 20, CPU, MOST)


@pytest.fixture
def make(decoder: Decoder, target_spec: ModelSpec, target_rows: DeviceRows) -> Make:
    def make_drafter(
        vocab_size: int = VOCAB, max_positions: int = 64, assumed_chance: float | None = None
    ) -> BehindDraftModel:
        kv = lent_kv(allocate_kv(target_spec, 60, BLOCK, torch.float32, CPU), decoder.spec, "small")
        rows = Rows(4, 64, BLOCK, 8)
        runner, limits = ModelRunner(decoder, kv.caches), GraphLimits(4, MOST, 80, VOCAB)
        path, _ = card_path(
            runner,
            limits,
            max_tokens=64,
            max_blocks=rows.block_tables.shape[1],
            device=CPU,
            capture=FakeCapture(),
            make_mark=Mark,
        )
        rounds = GraphRounds(runner, path.device_rows, limits, block_size=BLOCK, max_rounds=MOST)
        behind = GraphBehind(rounds, target_rows, vocab_size=vocab_size, max_draft=MOST, make_mark=Mark)
        rounds.capture(FakeCapture())
        behind.capture(FakeCapture())
        return BehindDraftModel(
            behind,
            path.forward,
            kv,
            rows,
            vocab_size=vocab_size,
            max_tokens=64,
            max_positions=max_positions,
            assumed_chance=assumed_chance,
            rounds=rounds,
        )

    return make_drafter


@torch.inference_mode()
def test_drafts_behind_steps_are_what_the_model_says(make: Make, alone: Alone, target_rows: DeviceRows) -> None:
    """Steps with drafts that hold in part, rows that skip a step, blocks that are taken away."""
    dice = random.Random(3)
    drafter = make()
    texts = {key: [dice.randrange(VOCAB) for _ in range(5 + key)] for key in range(3)}
    blocks = {key: list(range(20 * key, 20 * key + 20)) for key in texts}
    for key, text in texts.items():
        drafter.start(key, text, "")
        drafter.lend(key, blocks[key])
    drafter.catch_up(texts.keys())
    at_hand: dict[int, list[int]] = {key: [] for key in texts}
    num_right = 0
    for _ in range(13):
        drawn: list[int] = []
        running, tokens = {}, {}
        for key, text in texts.items():
            fed = at_hand[key][: dice.randint(0, MOST)]
            given = alone([*text, *fed], 1)[0] if dice.random() < 0.3 else [dice.randrange(VOCAB)]
            num_held = dice.randint(0, len(fed))
            drawn_here = [*fed[:num_held], *given, *(dice.randrange(VOCAB) for _ in fed[num_held:])]
            tokens[key] = drawn_here[: num_common(fed, drawn_here) + 1]
            if dice.random() < 0.85:
                place = target_rows.draft_place(key)
                running[key] = Running(len(drawn), fed, BY_COMPARISON, dice.randint(1, MOST), place)
            drawn += drawn_here
        ahead = drafter.ahead(running, torch.tensor(drawn)) if running else ()
        for key, text in texts.items():
            text += tokens[key]
            drafter.observe(key, tokens[key])
        promised = drafter.expected(ahead) if ahead else {}
        arrived = drafter.arrived() if ahead else {}
        drafter.catch_up([key for key in texts if key not in ahead])
        assert arrived.keys() == set(ahead)
        at_hand = {key: arrived.get(key, []) for key in texts}
        for key, draft in promised.items():
            assert 0 < len(draft.token_ids) <= len(arrived[key]) == running[key].most
            assert arrived[key] == alone(texts[key], running[key].most)[0]
            place = target_rows.draft_place(key)
            assert target_rows.tokens[place : place + len(arrived[key])].tolist() == arrived[key]
            num_right += 1
        if dice.random() < 0.2:
            key = dice.choice(list(texts))
            drafter.recall(key)
            drafter.lend(key, blocks[key])
            drafter.catch_up([key])
    assert num_right > 20


@torch.inference_mode()
def test_who_is_not_caught_up_or_has_no_room_is_left_out(make: Make, target_rows: DeviceRows) -> None:
    drafter = make(max_positions=9)
    for key, length in ((0, 5), (1, 5), (2, 9)):
        drafter.start(key, [3] * length, "")
    drafter.lend(0, range(10))
    drafter.lend(2, range(10, 20))
    drafter.catch_up([0, 2])
    running = {key: Running(key, [], BY_COMPARISON, 2, target_rows.draft_place(key)) for key in range(3)}
    assert list(drafter.ahead(running, torch.tensor([1, 1, 1]))) == [0]
    drafter.lend(1, range(20, 30))
    drafter.catch_up([1])
    assert list(drafter.ahead({1: running[1]}, torch.tensor([1, 1]))) == [1]
    drafter.arrived()
    drafter.arrived()


@torch.inference_mode()
def test_drafts_end_with_the_room_for_them(make: Make, target_rows: DeviceRows) -> None:
    drafter = make(max_positions=9)
    drafter.start(0, [3] * 6, "")
    drafter.lend(0, range(20))
    drafter.catch_up([0])
    drafter.ahead({0: Running(0, [], BY_COMPARISON, 4, target_rows.draft_place(0))}, torch.tensor([1]))
    drafter.observe(0, [1])
    assert len(drafter.expected([0])[0].token_ids) == 3  # two are fed, the last one is not
    drafter.arrived()


@torch.inference_mode()
def test_a_request_that_left_or_lost_its_blocks_is_passed_over(
    make: Make, alone: Alone, target_rows: DeviceRows
) -> None:
    drafter = make()
    for key in range(2):
        drafter.start(key, [3, 1, 4, 1, 5], "")
        drafter.lend(key, range(10 * key, 10 * key + 10))
    drafter.catch_up([0, 1])
    running = {key: Running(key, [], BY_COMPARISON, 2, target_rows.draft_place(key)) for key in range(2)}
    drafter.ahead(running, torch.tensor([9, 9]))
    for key in range(2):
        drafter.observe(key, [9])
    drafter.expected([0, 1])
    drafter.stop(0)
    drafter.start(0, [7, 8], "")
    drafter.recall(1)
    drafter.arrived()
    drafter.observe(1, [2])
    drafter.lend(1, range(10, 20))
    drafter.catch_up([1])
    drafter.ahead({1: running[1]}, torch.tensor([0, 6]))
    drafter.observe(1, [6])
    drafter.expected([1])
    assert drafter.arrived()[1] == alone([3, 1, 4, 1, 5, 9, 2, 6], 2)[0]


@torch.inference_mode()
def test_chances_are_those_that_drafts_had_on_average(make: Make, alone: Alone, target_rows: DeviceRows) -> None:
    drafter, sure = make(), make(assumed_chance=0.7)
    text = [3, 1, 4, 1, 5]
    for one in (drafter, sure):
        one.start(0, text, "")
        one.lend(0, range(10))
        one.catch_up([0])
        running = {0: Running(0, [], BY_COMPARISON, 3, target_rows.draft_place(0))}
        for _ in range(60):
            one.ahead(running, torch.tensor([9]))
            one.arrived()
    sure.ahead(running, torch.tensor([9]))
    sure.observe(0, [9])
    assert sure.expected([0])[0].survival == pytest.approx((0.7, 0.49, 0.343))
    drafter.ahead(running, torch.tensor([9]))
    drafter.observe(0, [9])
    _, survival = alone([*text, 9], 3)
    told = drafter.expected([0])[0].survival
    assert told == pytest.approx(survival[: len(told)], rel=0.2)
