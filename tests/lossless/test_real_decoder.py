"""The same promise over the real decoder and its KV cache, on small random weights."""

from __future__ import annotations

import math

import pytest
import torch

from threefold.draft.draft_model import DraftModelDrafter
from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.request import SamplingParams
from threefold.runner.forward import DeviceRows, HostForward
from threefold.runner.lent_kv import lent_kv
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner

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
    def make(kv, max_rows=8):
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


def test_lookup_and_draft_model_together_change_nothing(real_engine, drafters, with_draft_model, prompts):
    wishes = [SamplingParams(max_tokens=60, temperature=0.0)] * len(prompts)
    expected = real_engine().run(prompts, wishes)
    both = real_engine(drafters=[drafters["Ngram"]()], draft_model=with_draft_model, num_drafts=4)
    assert both.run(prompts, wishes) == expected
    assert set(both.core.stats().accepted_by) == {"ngram", "draft_model"}
