"""The same promise for quantised models: a plain draft beside a quantised target, and the other way round.

The twin of a quantised checkpoint has its weights written out plain, so that drafts mostly hold and both ways through
verification are taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from threefold.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from threefold.engine.build import build_engine
from threefold.models.checkpoint import Checkpoint, open_checkpoint
from threefold.models.quantization import MODULES, scheme_for
from threefold.request import Request, SamplingParams

VOCAB = 160
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256,
    "eos_token_id": 1, "dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
INT4 = {"bits": 4, "group_size": 32}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
SECTIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", **INT4},
    "gptq": {"quant_method": "gptq", **INT4},
    "pack-quantized": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}},
    },
    "fp8 by block": {"quant_method": "fp8", "weight_block_size": [16, 32]},
    "fp8 by output": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOAT8}},
    },
}
FP8_KINDS = [kind for kind in SECTIONS if kind.startswith("fp8")]


def save(folder: Path, tensors: dict[str, torch.Tensor], **more: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | more))
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def plain_weights(checkpoint: Checkpoint, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """What a quantised checkpoint's products do to unit vectors, which is their weights; the rest as it is."""
    yield from ((name, tensor) for name, tensor in tensors.items() if "_proj." not in name)
    for layer in range(SHAPE["num_hidden_layers"]):
        for module in (f"model.layers.{layer}.{place}" for place in MODULES.values()):
            scheme = scheme_for(checkpoint.spec, module)
            assert scheme is not None
            parts = {kind: tensors[f"{module}.{kind}"] for kind in scheme.stored}
            inputs = SHAPE["intermediate_size" if "down" in module else "hidden_size"]
            product = scheme.product(parts, None, is_gated=False, dtype=torch.float32)
            yield f"{module}.weight", product(torch.eye(inputs)).T.contiguous()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A quantised checkpoint and its plain twin."""
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    section = SECTIONS[request.param]
    folder = Path(save(tmp_path / "quantised", {}, quantization_config=section))
    checkpoint = open_checkpoint(folder, "dummy", seed=5)
    tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors(torch.float32)}
    twin = save(tmp_path / "twin", dict(plain_weights(checkpoint, tensors)))
    return save(folder, tensors, quantization_config=section), twin


def answers(target: str, draft: str | None = None, quantization: str | None = None) -> tuple[list[list[int]], float]:
    """What the target says, and the share of drafts that held."""
    methods = () if draft is None else ("draft_model",)
    asked = SpeculationConfig(methods=methods, draft_model=draft, num_speculative_tokens=4, is_adaptive=False)
    model = ModelConfig(model=target, dtype="float32", quantization=quantization)
    core, _ = build_engine(EngineConfig(model=model, cache=CacheConfig(num_blocks=64), speculation=asked))
    found: dict[int, list[int]] = {i: [] for i in range(1, 4)}
    for i in found:
        params = SamplingParams(temperature=0.0 if i < 3 else 0.8, seed=4, max_tokens=30)
        prompt = [7 * i + j for j in range(10 + i)]
        core.add_request(Request(i, prompt, params, max_total_tokens=40 + i, end_token_ids=frozenset()))
    while core.has_work:
        for delta in core.step():
            found[delta.request_id] += delta.token_ids
    stats = core.stats()
    core.close()
    return list(found.values()), stats.num_accepted_tokens / max(stats.num_draft_tokens, 1)


@pytest.mark.parametrize("pair", SECTIONS, indirect=True)
def test_a_plain_draft_beside_a_quantised_target(pair: tuple[str, str]) -> None:
    quantised, twin = pair
    expected, _ = answers(quantised)

    got, accepted = answers(quantised, twin)

    assert got == expected
    assert accepted > 0.4  # of two greedy rows nearly all, of the third what its draws allow


@pytest.mark.parametrize("pair", FP8_KINDS, indirect=True)
def test_a_quantised_draft_beside_a_plain_target(pair: tuple[str, str]) -> None:
    quantised, twin = pair
    expected, _ = answers(twin)

    got, accepted = answers(twin, quantised)

    assert got == expected
    assert accepted > 0.4  # of two greedy rows nearly all, of the third what its draws allow


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_plain_draft_beside_itself_with_embedding_and_head_in_eight_bits(
    is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    folder = Path(save(tmp_path / "plain", {}, tie_word_embeddings=is_tied))
    checkpoint = open_checkpoint(folder, "dummy", seed=5)
    tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors(torch.float32)}
    model = save(folder, tensors, tie_word_embeddings=is_tied)
    expected, _ = answers(model, quantization="fp8")

    got, accepted = answers(model, draft=model, quantization="fp8")

    assert got == expected
    assert accepted > 0.4
