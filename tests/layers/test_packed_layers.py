"""All layers in one op: what they give one after another, each token by itself, and where they cannot be one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch

from threefold.kernels.packed import has_packed_products
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.layers.gguf import PACKINGS
from threefold.models.decoder import Decoder
from threefold.models.quantization import MODULES
from threefold.models.shapes import expected_tensors
from threefold.models.spec import ModelSpec, Quantization

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not has_packed_products(torch.bfloat16, CPU), reason="no packed products here")
BLOCK, NUM_BLOCKS = 16, 12
PACKED = {"qkv": "Q4_1", "o": "Q4_1", "gate_up": "Q4_1", "down": "Q4_1"}
MIXED = {"qkv": "Q8_0", "o": "Q4_0", "gate_up": "Q5_1", "down": "Q8_0"}
SPEC = ModelSpec(
    architecture="tiny",
    vocab_size=96,
    hidden_size=96,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=160,
    max_positions=256,
    has_tied_head=True,
)


def packed_spec(packings: Mapping[str, str] = PACKED, **changes: object) -> ModelSpec:
    part_of = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o", "down_proj": "down"}
    every = {
        f"model.layers.{layer}.{module}": packings[part_of.get(name, "gate_up")]
        for layer in range(SPEC.num_layers)
        for name, module in MODULES.items()
    }
    return dataclasses.replace(SPEC, quantization=Quantization("gguf", "test", packings=every), **changes)


def weights_of(spec: ModelSpec) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights = {}
    assert spec.quantization is not None
    for name, one in expected_tensors(spec).items():
        module, _, kind = name.rpartition(".")
        num_steps = 1 << PACKINGS[packing].bits if (packing := spec.quantization.packings.get(module)) else 0
        if kind == "numbers":
            weights[name] = torch.randint(num_steps, one.shape, dtype=torch.uint8, generator=generator)
        elif kind == "scales":
            weights[name] = torch.rand(one.shape, generator=generator).div(4 * num_steps).half()
        elif kind == "minima":
            weights[name] = torch.rand(one.shape, generator=generator).div(-8).half()
        else:
            weights[name] = torch.randn(one.shape, generator=generator) + ("norm" in name)
    return weights


def decoder_of(spec: ModelSpec, weights: Mapping[str, torch.Tensor] | None = None) -> Decoder:
    decoder = Decoder(spec, torch.bfloat16, CPU)
    decoder.load((weights or weights_of(spec)).items())
    return decoder


def one_by_one(decoder: Decoder) -> Decoder:
    assert decoder._at_once is not None
    decoder._at_once = None
    return decoder


class Rows:
    """Feeds rows, each in blocks of its own."""

    def __init__(self, decoder: Decoder, block_size: int = BLOCK) -> None:
        self.decoder, self.block_size = decoder, block_size
        self.kv = allocate_kv(decoder.spec, NUM_BLOCKS * BLOCK // block_size, block_size, torch.bfloat16, CPU)

    def feed(self, new: list[tuple[int, int, list[int]]]) -> torch.Tensor:
        """Hidden states of (row, tokens before, new tokens) each."""
        each = 4 * BLOCK // self.block_size
        tables = torch.tensor([[row * each + i for i in range(each)] for row, _, _ in new], dtype=torch.int32)
        positions = torch.tensor([before + i for _, before, ids in new for i in range(len(ids))])
        index = torch.tensor([i for i, (_, _, ids) in enumerate(new) for _ in ids])
        slots = tables[index, positions // self.block_size] * self.block_size + positions % self.block_size
        starts = torch.tensor([0, *(len(ids) for _, _, ids in new)]).cumsum(0).int()
        contexts = torch.tensor([before + len(ids) for _, before, ids in new], dtype=torch.int32)
        batch = Batch(
            token_ids=torch.tensor([token for _, _, ids in new for token in ids]),
            positions=positions,
            slots=slots.long(),
            row_starts=starts,
            context_lens=contexts,
            block_tables=tables,
            logit_tokens=torch.arange(len(positions)),
            max_new=max(len(ids) for _, _, ids in new),
            max_context=int(contexts.max()),
        )
        return self.decoder.forward(batch, self.kv)


FIRST = [(0, 0, list(range(5, 26))), (1, 0, [9]), (2, 0, [1, 2, 3])]
THEN = [(0, 21, [7]), (2, 3, [4, 5, 6, 7, 8])]
SPECS = {
    "plain": packed_spec(),
    "mixed packings": packed_spec(MIXED),
    "head norms": packed_spec(has_qk_norm=True),
    "biases": packed_spec(has_qkv_bias=True, has_o_bias=True, has_mlp_bias=True),
    "windows": packed_spec(sliding_window=8, window_layers=(0, 2)),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_they_give_what_the_layers_give_one_by_one(spec: ModelSpec) -> None:
    at_once, expected = Rows(decoder_of(spec)), Rows(one_by_one(decoder_of(spec)))
    for new in (FIRST, THEN):
        found, wanted = at_once.feed(new).float(), expected.feed(new).float()
        assert float((found - wanted).norm()) < 0.03 * float(wanted.norm())
    for one, other in zip(at_once.kv, expected.kv, strict=True):
        assert float((one.keys.float() - other.keys.float()).norm()) < 0.03 * float(other.keys.float().norm())


@pytest.mark.parametrize("each", [1, 2, 3, 5, 7, 8, 9, 30])
def test_a_token_is_bitwise_the_same_beside_others_and_alone(each: int) -> None:
    decoder = decoder_of(packed_spec())
    tokens = [(7 * i) % SPEC.vocab_size for i in range(40)]
    whole = Rows(decoder).feed([(0, 0, tokens), (1, 0, [3, 4])])[: len(tokens)]

    rows = Rows(decoder)
    parts = [rows.feed([(0, start, tokens[start : start + each])]) for start in range(0, len(tokens), each)]

    assert torch.equal(torch.cat(parts), whole)


def test_a_row_that_is_no_number_spoils_itself_alone() -> None:
    weights = weights_of(packed_spec())
    clean = Rows(decoder_of(packed_spec(), weights)).feed(FIRST)
    weights["model.embed_tokens.weight"][9] = float("nan")

    found = Rows(decoder_of(packed_spec(), weights)).feed([FIRST[2], (1, 0, [9])])

    assert found[3].isnan().all()
    assert torch.equal(found[:3], clean[-3:])


def test_caches_that_compiled_bodies_cannot_read_are_read_layer_by_layer() -> None:
    decoder = decoder_of(packed_spec())
    wanted = Rows(decoder).feed(FIRST).float()

    found = Rows(decoder, block_size=8).feed(FIRST).float()

    assert float((found - wanted).norm()) < 0.03 * float(wanted.norm())


def test_layers_that_are_not_all_packed_stay_apart() -> None:
    spec = packed_spec()
    assert spec.quantization is not None
    packings = dict(spec.quantization.packings)
    del packings["model.layers.1.mlp.down_proj"]
    plain = dataclasses.replace(spec, quantization=dataclasses.replace(spec.quantization, packings=packings))

    assert decoder_of(plain)._at_once is None


def test_heads_too_narrow_for_the_compiled_bodies() -> None:
    assert decoder_of(packed_spec(head_dim=16))._at_once is None
