"""Model folders without weights, for `--load-format dummy`: the shapes that are measured, and a tokenizer of bytes.

A token is a byte; the rest of the vocabulary is filler that no text contains, so the embedding and the head have their
true width. Knows nothing about engines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from threefold.bench.dummy_options import QUANTIZATIONS
from threefold.errors import ConfigError

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "smollm2-135m": _LLAMA
    | {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
    },
    # A pair that a CPU runs at a speed at which drafts can pay: the draft model is about a twelfth of the target.
    "small": _LLAMA
    | {
        "vocab_size": 8192,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
    },
    "small-draft": _LLAMA
    | {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
    },
}


def write_dummy(shape: str, folder: Path, quantization: str | None = None) -> Path:
    """Write config.json and tokenizer.json of a shape; returns the folder.

    Args:
        shape: key of SHAPES.
        folder: made where it is not there.
        quantization: key of QUANTIZATIONS; None = plain.

    Raises:
        ConfigError: the shape is unknown, or the folder cannot be written.
    """
    if shape not in SHAPES:
        raise ConfigError(f"no dummy model '{shape}'; there are {', '.join(SHAPES)}")
    config = dict(SHAPES[shape])
    if quantization is not None:
        config["quantization_config"] = QUANTIZATIONS[quantization]
    end = config["vocab_size"] - 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": end, "eos_token_id": end}, indent=1))
        _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": _filler(end)}))
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    return folder


def _tokenizer(vocab_size: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *map(_filler, range(len(alphabet), vocab_size))]
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _filler(index: int) -> str:
    return f"<filler {index}>"
