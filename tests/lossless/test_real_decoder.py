"""The same promise over the real decoder and its KV cache, on small random weights."""

from __future__ import annotations

import math

import pytest
import torch

from threefold.draft.draft_behind import BehindDraftModel
from threefold.draft.draft_model import DraftModelDrafter
from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.request import SamplingParams
from threefold.runner.behind import GraphBehind
from threefold.runner.forward import DeviceRows, HostForward
from threefold.runner.graphs import GraphLimits
from threefold.runner.lent_kv import lent_kv
from threefold.runner.path import card_path
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows, table_width
from threefold.runner.runner import ModelRunner
from threefold.sample.verify import SyntheticAcceptance
from threefold.testing.fake_capture import FakeCapture

VOCAB, BLOCK = 61, 4
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def spec():
    return ModelSpec(
        architecture="tiny",
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_positions=256,
        has_tied_head=True,
    )


def random_decoder(spec, seed, noise=0.0):
    """Weights of some seed, with noise of another on top: the less of it, the more two models agree."""
    dice, other = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else (torch.randn(shape, generator=dice) + noise * torch.randn(shape, generator=other))
        * (1.5 if "embed" in name else 2 / math.sqrt(shape[1]))
        for name, shape in expected_shapes(spec).items()
    }
    decoder = Decoder(spec, torch.float32, CPU)
    decoder.load(weights.items())
    return decoder


@pytest.fixture(scope="module")
def real_engine(engine, spec):
    decoder = random_decoder(spec, 3)

    def make(**settings):
        return engine(
            decoder=decoder,
            allocate=lambda num_blocks: allocate_kv(spec, num_blocks, BLOCK, torch.float32, CPU),
            **settings,
        )

    return make


@pytest.mark.parametrize("name", ["Ngram", "Suffix"])
def test_lookup_drafts_change_nothing_greedy_or_seeded(real_engine, drafters, prompts, name):
    wishes = [
        SamplingParams(max_tokens=60, temperature=0.0),
        SamplingParams(max_tokens=60, temperature=0.0),
        SamplingParams(max_tokens=60, temperature=0.4, seed=1, top_p=0.9),
        SamplingParams(max_tokens=60, temperature=0.0, frequency_penalty=0.3),
        SamplingParams(max_tokens=60, temperature=0.3, seed=2, min_p=0.1),
        SamplingParams(max_tokens=60, temperature=0.0, logit_bias={4: -5.0}),
    ]
    expected = real_engine().run(prompts, wishes)
    drafted = real_engine(drafters=[drafters[name]()], num_drafts=5)
    assert drafted.run(prompts, wishes) == expected
    assert drafted.core.stats().num_accepted_tokens > 0


def test_chunks_and_preemption_change_nothing(real_engine, drafters, prompts):
    wishes = [SamplingParams(max_tokens=50, temperature=0.0)] * len(prompts)
    expected = real_engine().run(prompts, wishes)
    tight = real_engine(
        drafters=[drafters["Ngram"]()], num_drafts=3, num_blocks=50, max_num_seqs=6, max_num_batched_tokens=9
    )
    assert tight.run(prompts, wishes) == expected
    assert tight.core.stats().num_preemptions > 0


@pytest.fixture(scope="module")
def draft_decoder(spec):
    """The target's own weights with noise: about every second draft is right."""
    return random_decoder(spec, 3, noise=0.15)


@pytest.fixture
def with_draft_model(draft_decoder):
    def make(kv, path, max_rows=8):
        lent = lent_kv(kv, draft_decoder.spec, "small")
        rows = Rows(max_rows, 200, BLOCK, 8)
        forward = HostForward(ModelRunner(draft_decoder, lent.caches), rows, DeviceRows(max_rows, 0, CPU))
        drafter = DraftModelDrafter(forward, lent, rows, vocab_size=VOCAB, max_tokens=20, max_positions=256)
        return drafter, lent.units_per_block * BLOCK

    return make


@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_a_draft_model_changes_nothing_greedy_or_seeded(real_engine, with_draft_model, prompts, num_drafts):
    wishes = [
        SamplingParams(max_tokens=60, temperature=0.0),
        SamplingParams(max_tokens=60, temperature=0.0, repetition_penalty=1.2),
        SamplingParams(max_tokens=60, temperature=0.4, seed=1, top_p=0.9),
        SamplingParams(max_tokens=60, temperature=0.0, frequency_penalty=0.3),
        SamplingParams(max_tokens=60, temperature=0.3, seed=2, min_p=0.1),
        SamplingParams(max_tokens=60, temperature=0.0, logit_bias={4: -5.0}),
    ]
    expected = real_engine().run(prompts, wishes)
    drafted = real_engine(draft_model=with_draft_model, num_drafts=num_drafts)
    assert drafted.run(prompts, wishes) == expected
    stats = drafted.core.stats()
    assert stats.num_draft_faults == 0
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens  # right ones and wrong ones


def test_a_draft_model_takes_nothing_from_anybody(real_engine, with_draft_model, prompts):
    """Too few blocks for everybody: the same preemptions and prefix hits as without, and the same answers."""
    wishes = [SamplingParams(max_tokens=50, temperature=0.0)] * len(prompts)
    settings = {"num_blocks": 50, "max_num_seqs": 6, "max_num_batched_tokens": 9}
    plain = real_engine(**settings)
    expected = plain.run(prompts, wishes)
    drafted = real_engine(draft_model=with_draft_model, num_drafts=3, **settings)
    assert drafted.run(prompts, wishes) == expected
    assert plain.core.stats().num_preemptions > 0
    assert drafted.core.stats().num_draft_tokens > 0
    assert drafted.core.stats().prefix_hits >= plain.core.stats().prefix_hits


class FakeMark:
    """A mark in a queue that is always worked off."""

    def record(self):
        self.is_recorded = True

    def synchronize(self):
        assert self.is_recorded

    def elapsed_time(self, other):
        return 0.0


def on_card(runner, max_rows, max_draft):
    """A model's path with graphs, those of prompts too."""
    limits = GraphLimits(max_rows, max_draft, 220, VOCAB, max_prompt_tokens=16)
    settings = {"max_tokens": 64, "max_blocks": table_width(200, BLOCK, max_draft), "device": CPU}
    path, _ = card_path(runner, limits, capture=FakeCapture(), make_mark=FakeMark, **settings)
    return path, limits


@pytest.fixture
def behind_engine(real_engine, draft_decoder):
    """An engine whose draft model drafts behind steps, all of it through graphs."""

    def make(num_drafts, max_num_seqs=8, max_draft_positions=256, **settings):
        def draft_model(kv, path):
            lent = lent_kv(kv, draft_decoder.spec, "small")
            rows = Rows(max_num_seqs, 200, BLOCK, num_drafts)
            runner = ModelRunner(draft_decoder, lent.caches)
            own, limits = on_card(runner, max_num_seqs, num_drafts)
            rounds = GraphRounds(runner, own.device_rows, limits, block_size=BLOCK, max_rounds=num_drafts)
            behind = GraphBehind(rounds, path.device_rows, vocab_size=VOCAB, max_draft=num_drafts, make_mark=FakeMark)
            for one in (rounds, behind):
                one.capture(FakeCapture())
            drafter = BehindDraftModel(
                behind,
                own.forward,
                lent,
                rows,
                vocab_size=VOCAB,
                max_tokens=20,
                max_positions=max_draft_positions,
                rounds=rounds,
            )
            return drafter, lent.units_per_block * BLOCK

        return real_engine(
            draft_model=draft_model,
            num_drafts=num_drafts,
            max_num_seqs=max_num_seqs,
            make_path=lambda runner, rows: on_card(runner, max_num_seqs, num_drafts)[0],
            is_overlapped=True,
            is_behind=True,
            **settings,
        )

    return make


def count_behind(drafted, monkeypatch):
    """How many rows were drafted for behind a step."""
    counts = []
    plain = drafted.drafter.ahead

    def ahead(rows, drawn):
        request_ids = plain(rows, drawn)
        counts.append(len(request_ids))
        return request_ids

    monkeypatch.setattr(drafted.drafter, "ahead", ahead)
    return counts


@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_drafts_behind_steps_change_nothing_greedy_or_seeded(
    real_engine, with_draft_model, behind_engine, prompts, num_drafts, monkeypatch
):
    wishes = [
        SamplingParams(max_tokens=60, temperature=0.0),
        SamplingParams(max_tokens=55, temperature=0.0),
        SamplingParams(max_tokens=60, temperature=0.4, seed=1, top_p=0.9),
        SamplingParams(max_tokens=60, temperature=0.0, logprobs=1),
        SamplingParams(max_tokens=40, temperature=0.3, seed=2, min_p=0.1),
        SamplingParams(max_tokens=60, temperature=0.0),
    ]
    expected = real_engine().run(prompts, wishes)
    in_between = real_engine(draft_model=with_draft_model, num_drafts=num_drafts)
    assert in_between.run(prompts, wishes) == expected
    drafted = behind_engine(num_drafts)
    counts = count_behind(drafted, monkeypatch)
    assert drafted.run(prompts, wishes) == expected
    stats, others = drafted.core.stats(), in_between.core.stats()
    assert stats.num_draft_faults == 0
    assert sum(counts) > 30
    # The very drafts that the model makes between steps, so as many of them hold: its KV is what it should be.
    share, other_share = (s.num_accepted_tokens / s.num_draft_tokens for s in (stats, others))
    assert 0.1 < share < 1
    assert share == pytest.approx(other_share, abs=0.06)


def test_wishes_that_look_back_wait_for_the_drafts(real_engine, behind_engine, prompts, monkeypatch):
    kinds = [{"repetition_penalty": 1.2}, {"frequency_penalty": 0.3}, {"logit_bias": {4: -5.0}}, {}]
    wishes = [SamplingParams(max_tokens=50, temperature=0.0, **kinds[i % 4]) for i in range(len(prompts))]
    expected = real_engine().run(prompts, wishes)
    drafted = behind_engine(4)
    counts = count_behind(drafted, monkeypatch)
    assert drafted.run(prompts, wishes) == expected
    assert sum(counts) > 30
    assert drafted.core.stats().num_accepted_tokens > 0


def test_preemption_recalled_blocks_and_aborts_while_drafts_are_made(real_engine, behind_engine, prompts, monkeypatch):
    wishes = [SamplingParams(max_tokens=50, temperature=0.0)] * len(prompts)
    settings = {"num_blocks": 38, "max_num_seqs": 6, "max_num_batched_tokens": 24}
    expected = real_engine(**settings).run(prompts, wishes)
    drafted = behind_engine(3, **settings)
    counts = count_behind(drafted, monkeypatch)
    for request_id, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True)):
        drafted.add(request_id, prompt, wish)
    num_steps = 0
    while drafted.core.has_work:
        drafted.step()
        num_steps += 1
        if num_steps == 9:
            drafted.core.abort([1])
    answers = [drafted.answer(request_id) for request_id in range(len(prompts))]
    assert answers[0] == expected[0]
    assert answers[2:] == expected[2:]
    assert answers[1] == expected[1][: len(answers[1])]
    assert drafted.core.stats().num_preemptions > 0
    assert drafted.core.stats().num_draft_faults == 0
    assert sum(counts) > 10


def test_a_drafter_that_fails_behind_a_step_costs_drafts_alone(real_engine, behind_engine, prompts, monkeypatch):
    wishes = [SamplingParams(max_tokens=30, temperature=0.0)] * len(prompts)
    expected = real_engine().run(prompts, wishes)
    for verb in ("ahead", "expected", "catch_up"):
        drafted = behind_engine(3)
        plain, calls = getattr(drafted.drafter, verb), []

        def fails(*args, plain=plain, calls=calls):
            calls.append(args)
            if len(calls) % 3 == 0:
                raise ValueError("no idea")
            return plain(*args)

        monkeypatch.setattr(drafted.drafter, verb, fails)
        assert drafted.run(prompts, wishes) == expected
        assert drafted.core.stats().num_draft_faults == len(calls) // 3


def test_a_decree_holds_on_the_device_too(behind_engine, prompts, monkeypatch):
    """Acceptance by decree: each window's two drafts hold, so rows stay in step and the draft model's KV with them."""
    drafted = behind_engine(3, acceptance=SyntheticAcceptance((1.0, 1.0, 0.0)))
    counts = count_behind(drafted, monkeypatch)
    drafted.run(prompts, [SamplingParams(max_tokens=40, temperature=0.0)] * len(prompts))
    stats = drafted.core.stats()
    assert stats.num_accepted_tokens / stats.num_drafts == pytest.approx(2.0, abs=0.1)
    assert sum(counts) > 30


def test_beyond_the_draft_models_context_rows_go_on_alone(real_engine, behind_engine, prompts):
    wishes = [SamplingParams(max_tokens=60, temperature=0.0)] * len(prompts)
    drafted = behind_engine(4, max_draft_positions=40)
    assert drafted.run(prompts, wishes) == real_engine().run(prompts, wishes)
    assert drafted.core.stats().num_accepted_tokens > 0


def test_lookup_and_draft_model_together_change_nothing(real_engine, drafters, with_draft_model, prompts):
    wishes = [SamplingParams(max_tokens=60, temperature=0.0)] * len(prompts)
    expected = real_engine().run(prompts, wishes)
    both = real_engine(drafters=[drafters["Ngram"]()], draft_model=with_draft_model, num_drafts=4)
    assert both.run(prompts, wishes) == expected
    assert set(both.core.stats().accepted_by) == {"ngram", "draft_model"}
