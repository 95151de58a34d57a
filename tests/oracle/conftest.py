"""Tiny random checkpoints of transformers' own classes, and a driver that feeds our decoder rows of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec, RopeSpec

VOCAB = 160
CPU = torch.device("cpu")
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", {"rope": {"rope_type": "linear", "factor": 2.0}}),
    "llama-llama3": ("Llama", {"rope": LLAMA3}),
    "llama-yarn": ("Llama", {"rope": YARN}),
    "llama-dynamic": ("Llama", {"rope": {"rope_type": "dynamic", "factor": 2.0}}),
    "llama-small-heads": ("Llama", {"head_dim": 8}),  # too narrow for the compiled bodies
    "llama-many-groups": ("Llama", {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 1}),
    "mistral-window": ("Mistral", {"sliding_window": 40}),
    "qwen2": ("Qwen2", {}),
    "qwen2-some-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
}


def make_oracle(name: str) -> Any:
    """A seeded float32 model with norms and biases that are not trivial."""
    family, changes = CASES[name]
    changes = dict(changes)
    rope = {"rope_type": "default", "rope_theta": 10_000.0} | changes.pop("rope", {})
    config = getattr(transformers, f"{family}Config")(**(SMALL | changes | {"rope_parameters": rope}))
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if key.endswith(("norm.weight", "bias")):
                tensor.add_(torch.randn_like(tensor) * 0.2)
            elif "embed" not in key:
                tensor.mul_(4.0)  # larger than the usual start, so that attention is not uniform
    return model


def make_spec(model: Any) -> ModelSpec:
    config = model.config
    rope = config.rope_parameters
    is_windowed = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
    window = getattr(config, "sliding_window", None)
    return ModelSpec(
        architecture=type(model).__name__,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim if hasattr(config, "head_dim") else config.hidden_size // config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope=RopeSpec(
            theta=rope["rope_theta"],
            scaling=rope["rope_type"].replace("default", "none"),
            factor=rope.get("factor", 1.0),
            original_max_positions=rope.get("original_max_position_embeddings", config.max_position_embeddings),
            low_freq_factor=rope.get("low_freq_factor", 1.0),
            high_freq_factor=rope.get("high_freq_factor", 4.0),
        ),
        has_qkv_bias="Qwen2" in type(model).__name__ or getattr(config, "attention_bias", False),
        has_o_bias=getattr(config, "attention_bias", False),
        has_mlp_bias=getattr(config, "mlp_bias", False),
        has_qk_norm="Qwen3" in type(model).__name__,
        has_tied_head=config.tie_word_embeddings,
        sliding_window=window,
        window_layers=tuple(i for i, is_in in enumerate(is_windowed) if is_in),
    )


class Driver:
    """Feeds rows to a decoder as the worker does, over blocks in a random order."""

    def __init__(
        self, decoder: Decoder, *, block_size: int = 16, num_blocks: int = 96, dtype: torch.dtype = torch.float32
    ):
        self.decoder = decoder
        self.block_size = block_size
        self.kv = allocate_kv(decoder.spec, num_blocks, block_size, dtype, CPU)
        self.free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Feed each row these new tokens; returns each row's logits, [its new tokens, vocab]."""
        positions, slots = [], []
        for name, tokens in rows.items():
            table, start = self.tables.setdefault(name, []), self.lengths.get(name, 0)
            self.lengths[name] = start + len(tokens)
            while len(table) * self.block_size < self.lengths[name]:
                table.append(self.free.pop())
            for position in range(start, self.lengths[name]):
                positions.append(position)
                slots.append(table[position // self.block_size] * self.block_size + position % self.block_size)
        counts = [len(tokens) for tokens in rows.values()]
        width = max(len(self.tables[name]) for name in rows)
        batch = Batch(
            token_ids=torch.tensor([token for tokens in rows.values() for token in tokens]),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            row_starts=torch.tensor([0, *counts]).cumsum(0).int(),
            context_lens=torch.tensor([self.lengths[name] for name in rows], dtype=torch.int32),
            block_tables=torch.tensor([(self.tables[name] + [0] * width)[:width] for name in rows], dtype=torch.int32),
            logit_tokens=torch.arange(len(positions)),
            max_new=max(counts),
            max_context=max(self.lengths[name] for name in rows),
        )
        logits = self.decoder.logits(self.decoder.forward(batch, self.kv))
        return dict(zip(rows, logits.split(counts), strict=True))

    def share_prefix(self, name: str, other: str, num_tokens: int) -> None:
        """Let a new row start on the full blocks of another row's prefix."""
        self.tables[name] = self.tables[other][: num_tokens // self.block_size]
        self.lengths[name] = num_tokens

    def rewind(self, name: str, num_tokens: int) -> None:
        """Forget a row's last tokens, as after rejected drafts; their slots are written again."""
        self.lengths[name] -= num_tokens


@pytest.fixture(scope="session")
def oracles() -> Callable[[str], tuple[Any, Decoder]]:
    """(transformers' model, our decoder loaded from its weights) by the name of a case, made once."""
    made: dict[str, tuple[Any, Decoder]] = {}

    def get(name: str) -> tuple[Any, Decoder]:
        if name not in made:
            model = make_oracle(name)
            decoder = Decoder(make_spec(model), torch.float32, CPU)
            decoder.load(model.state_dict().items())
            made[name] = model, decoder
        return made[name]

    return get


@pytest.fixture
def driver() -> Callable[..., Driver]:
    """Makes a driver for a decoder."""
    return Driver


@pytest.fixture(scope="session")
def case_names() -> list[str]:
    """All cases."""
    return list(CASES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that ask for `case` run for every case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES))
