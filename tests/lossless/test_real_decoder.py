"""The same promise over the real decoder and its KV cache, on small random weights."""

from __future__ import annotations

import math

import pytest
import torch

from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.request import SamplingParams

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


@pytest.fixture(scope="module")
def real_engine(engine, spec):
    dice = torch.Generator().manual_seed(3)
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=dice) * (1.5 if "embed" in name else 2 / math.sqrt(shape[1]))
        for name, shape in expected_shapes(spec).items()
    }
    decoder = Decoder(spec, torch.float32, CPU)
    decoder.load(weights.items())

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
