"""What the decoder says about weights that do not fit, and which hidden states it gives back."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.layers.mlp import GatedMLP
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec

CPU = torch.device("cpu")
SPEC = ModelSpec(
    architecture="tiny",
    vocab_size=20,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_positions=64,
    has_tied_head=True,
)


def weights_of(spec: ModelSpec) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in expected_shapes(spec).items()}


def decoder_with(weights: dict[str, torch.Tensor], spec: ModelSpec = SPEC) -> Decoder:
    decoder = Decoder(spec, torch.float32, CPU)
    decoder.load(weights.items())
    return decoder


@pytest.mark.parametrize(
    "lost",
    [
        "model.norm.weight",
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.input_layernorm.weight",
    ],
)
def test_a_missing_tensor_is_named(lost: str) -> None:
    weights = weights_of(SPEC)
    del weights[lost]

    with pytest.raises(ModelLoadError, match="lacks 1 tensors") as error:
        decoder_with(weights)

    assert ".".join(lost.split(".")[-2:]) in str(error.value)


def test_a_head_of_its_own_must_come() -> None:
    untied = dataclasses.replace(SPEC, has_tied_head=False)
    weights = weights_of(untied)
    decoder_with(weights, untied)

    with pytest.raises(ModelLoadError, match=r"lm_head\.weight"):
        decoder_with({name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}, untied)


def test_a_head_beside_a_tied_one_is_left_aside() -> None:
    decoder_with(weights_of(SPEC) | {"lm_head.weight": torch.zeros(20, 32)})


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.mlp.side_proj.weight", "model.layers.0.q_norm.weight",
             "model.layers.0.mlp.up_proj.bias", "visual.weight"]
)  # fmt: skip
def test_an_unknown_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelLoadError, match="no such tensor") as error:
        decoder_with(weights_of(SPEC) | {name: torch.ones(3, 3) if "norm" not in name else torch.ones(3)})

    assert str(error.value).startswith(name)


def test_a_tensor_that_comes_twice_is_refused() -> None:
    weights = weights_of(SPEC)
    name = "model.layers.0.mlp.down_proj.weight"

    with pytest.raises(ModelLoadError, match="twice"):
        Decoder(SPEC, torch.float32, CPU).load([*weights.items(), (name, weights[name])])


def forward(decoder: Decoder, wanted: list[int]) -> torch.Tensor:
    """A prompt of six tokens."""
    tokens = torch.arange(6)
    batch = Batch(
        token_ids=tokens,
        positions=tokens,
        slots=tokens,
        row_starts=torch.tensor([0, 6], dtype=torch.int32),
        context_lens=torch.tensor([6], dtype=torch.int32),
        block_tables=torch.tensor([[0]], dtype=torch.int32),
        logit_tokens=torch.tensor(wanted, dtype=torch.int64),
        max_new=6,
        max_context=6,
    )
    return decoder.forward(batch, allocate_kv(SPEC, 1, 16, torch.float32, CPU))


def test_only_the_wanted_tokens_come_back() -> None:
    decoder = decoder_with(weights_of(SPEC))

    whole = forward(decoder, list(range(6)))

    torch.testing.assert_close(whole[[5, 2]], forward(decoder, [5, 2]))
    assert (0, 32) == tuple(forward(decoder, []).shape)


@pytest.mark.parametrize("wanted", [[5, 2], [4], []])
def test_behind_the_last_attention_only_the_wanted_tokens_go_on(
    wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, seen, inner = decoder_with(weights_of(SPEC)), [], GatedMLP.inner

    def counting(mlp: GatedMLP, hidden: torch.Tensor) -> object:
        seen.append(len(hidden))
        return inner(mlp, hidden)

    monkeypatch.setattr(GatedMLP, "inner", counting)

    forward(decoder, wanted)

    assert [6, len(wanted)] == seen if wanted else [6] == seen
