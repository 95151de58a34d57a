"""config.json of each family, old and new style, against what transformers makes of the same file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from threefold.errors import ModelLoadError
from threefold.models.registry import FAMILIES, spec_from_config
from threefold.models.spec import ModelSpec


def test_a_minimal_llama(config: dict[str, Any]) -> None:
    spec = spec_from_config(config)
    assert spec == ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=160,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        max_positions=256,
    )


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "eos_token_id": [7, 9]},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "bos_token_id": 3},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        {"sliding_window": None},
    ],
)
def test_fields_agree_with_transformers(name: str, more: dict[str, Any], config: dict[str, Any]) -> None:
    import transformers

    given = {key: value for key, value in config.items() if key != "num_key_value_heads"} | {"num_attention_heads": 32}
    given |= {"architectures": [name]} | more
    theirs = getattr(transformers, name).config_class.from_dict(json.loads(json.dumps(given)))
    ours = spec_from_config(given)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.has_tied_head == theirs.tie_word_embeddings
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    if name != "LlamaForCausalLM":  # where transformers keeps the field and does nothing with it
        assert ours.sliding_window == _their_window(theirs)
    if ours.sliding_window is not None and ours.window_layers:
        kinds = enumerate(theirs.layer_types)
        assert ours.window_layers == tuple(layer for layer, kind in kinds if kind == "sliding_attention")
    if "eos_token_id" in more:
        assert list(ours.eos_token_ids) == theirs.eos_token_id


def _their_window(config: Any) -> int | None:
    kinds = getattr(config, "layer_types", None)
    has_window = kinds is None or "sliding_attention" in kinds
    return getattr(config, "sliding_window", None) if has_window else None


@pytest.mark.parametrize("name", FAMILIES)
def test_biases_and_norms_are_those_of_the_transformers_model(name: str, config: dict[str, Any]) -> None:
    import torch
    import transformers

    from threefold.models.shapes import expected_shapes

    given = config | {"architectures": [name], "attention_bias": True, "mlp_bias": name == "LlamaForCausalLM"}
    kind = getattr(transformers, name)
    with torch.device("meta"):
        model = kind(kind.config_class.from_dict(dict(given)))
    theirs = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert expected_shapes(spec_from_config(given)) == theirs


def test_a_null_is_not_silence(config: dict[str, Any]) -> None:
    qwen = config | {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 64, "head_dim": 2}
    assert spec_from_config(qwen | {"num_key_value_heads": None}).num_kv_heads == 64
    del qwen["num_key_value_heads"]
    assert spec_from_config(qwen).num_kv_heads == 32
    mistral = config | {"architectures": ["MistralForCausalLM"]}
    assert spec_from_config(mistral | {"sliding_window": None}).sliding_window is None
    assert spec_from_config(mistral).sliding_window == 4096


def test_a_window_in_all_upper_layers_or_none(config: dict[str, Any]) -> None:
    qwen = config | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 8}
    assert spec_from_config(qwen | {"max_window_layers": 0}).window_layers == ()
    assert spec_from_config(qwen | {"max_window_layers": 0}).sliding_window == 8
    assert spec_from_config(qwen | {"max_window_layers": 2}).sliding_window is None
    listed = spec_from_config(qwen | {"layer_types": ["sliding_attention", "full_attention"]})
    assert (listed.sliding_window, listed.window_layers) == (8, (0,))
    with pytest.raises(ModelLoadError, match="layer_types must be a list of 2"):
        spec_from_config(qwen | {"layer_types": ["sliding_attention"]})


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "float16"), ("torch_dtype", "float16"), ("dtype", "torch.float16")]
)
def test_dtype_old_and_new(field: str, value: str, config: dict[str, Any]) -> None:
    assert spec_from_config(config | {field: value}).dtype == "float16"


def test_an_unknown_architecture_lists_the_known(config: dict[str, Any]) -> None:
    with pytest.raises(
        ModelLoadError, match="unknown architecture 'GPT2LMHeadModel'; known: LlamaForCausalLM, Mistral"
    ):
        spec_from_config(config | {"architectures": ["GPT2LMHeadModel"]})


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", [3]])
def test_no_architecture(value: Any, config: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match="architectures must be a list with one of"):
        spec_from_config(config | {"architectures": value})


@pytest.mark.parametrize("section", [{"quant_method": "bitsandbytes", "bits": 4}, {"format": "int-quantized"}])
def test_quantised_weights_say_what_works_instead(section: dict[str, Any], config: dict[str, Any]) -> None:
    scheme = section.get("quant_method") or f"compressed-tensors {section['format']}"
    with pytest.raises(ModelLoadError, match=rf"quantised by {scheme} are not supported; built are fp8, .* or use the"):
        spec_from_config(config | {"quantization_config": section})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"hidden_size": None}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to"),
        ({"num_attention_heads": 0}, "num_attention_heads must be"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"dtype": "int8"}, "dtype must be one of bfloat16"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_what_cannot_hold_is_named(more: dict[str, Any], message: str, config: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_from_config(config | more, "model/config.json")
