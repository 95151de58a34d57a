"""A checkpoint must have just the model's tensors, each of its shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.models.shapes import check_shapes, expected_shapes, kept_bytes
from threefold.models.spec import ModelSpec, Quantization

SPEC = ModelSpec("LlamaForCausalLM", 100, 32, 2, 4, 2, 8, 48, 64)


def test_sizes_add_up_to_the_specs_own_count() -> None:
    for spec in (SPEC, replace(SPEC, has_tied_head=True)):
        assert sum(_size(shape) for shape in expected_shapes(spec).values()) == spec.num_parameters


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def test_named_differences_add_tensors() -> None:
    plain = expected_shapes(SPEC).keys()
    rich = replace(SPEC, has_qkv_bias=True, has_o_bias=True, has_mlp_bias=True, has_qk_norm=True)
    assert len(expected_shapes(rich)) == len(plain) + 2 * (3 + 1 + 3 + 2)
    assert "lm_head.weight" not in expected_shapes(replace(SPEC, has_tied_head=True))
    assert expected_shapes(rich)["model.layers.1.self_attn.k_norm.weight"] == (8,)


def test_the_largest_come_first() -> None:
    assert list(expected_shapes(SPEC))[:2] == ["model.embed_tokens.weight", "lm_head.weight"]


def test_complete_and_redundant_tensors_pass() -> None:
    tied = replace(SPEC, has_tied_head=True)
    found = expected_shapes(SPEC) | {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    check_shapes(SPEC, found, "here")
    check_shapes(tied, found, "here")


def test_missing_left_over_and_misshapen_are_named() -> None:
    found = dict(expected_shapes(SPEC))
    del found["model.norm.weight"]
    with pytest.raises(ModelLoadError, match=r"here: 1 tensors \(model\.norm\.weight\) missing"):
        check_shapes(SPEC, found, "here")
    with pytest.raises(ModelLoadError, match=r"4 tensors .*self_attn\.q_norm\.weight.* have no place in Llama"):
        check_shapes(SPEC, expected_shapes(replace(SPEC, has_qk_norm=True)), "here")
    found = expected_shapes(SPEC) | {"model.norm.weight": (33,)}
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has shape \[33\], .* asks for \[32\]"):
        check_shapes(SPEC, found, "here")


EIGHT_B = ModelSpec("Qwen3ForCausalLM", 151936, 4096, 36, 32, 8, 128, 12288, 40960, has_qk_norm=True)


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        (Quantization("fp8", "fp8", is_made_here=True, has_int8_tables=True), 0.501),
        (Quantization("fp8", "fp8 by block", "block", block_size=(128, 128), has_int8_tables=True), 0.501),
        (Quantization("awq", "awq", "group", 4, 128, has_zero_points=True, has_int8_tables=True), 0.302),
        (Quantization("awq", "awq", "group", 4, 128, has_zero_points=True), 0.378),
    ],
)
def test_a_card_holds_so_much_of_what_bf16_takes(quantization: Quantization, share: float) -> None:
    card, plain = torch.device("cuda"), kept_bytes(EIGHT_B, torch.bfloat16, torch.device("cuda"))
    taken = kept_bytes(replace(EIGHT_B, quantization=quantization), torch.bfloat16, card)
    assert share - 0.002 < taken / plain < share
