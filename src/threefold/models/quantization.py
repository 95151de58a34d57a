"""From what config.json says of a checkpoint's quantisation to the scheme of each product of the model.

Knows which kinds are built; a new kind is one line in `PARSERS`, its products one in `SCHEMES`. How a kind words its
configuration is read beside this file (quant_fp8.py, …), how it multiplies stands in layers/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from threefold.errors import ModelLoadError
from threefold.layers.awq import awq_scheme
from threefold.layers.gguf import GgufScheme
from threefold.layers.gptq import gptq_scheme, gptq_v2_scheme
from threefold.layers.int8 import Int8WhileLoading
from threefold.layers.packed_int4 import packed_int4_scheme
from threefold.layers.quant import QuantScheme, TableScheme
from threefold.models.fields import Fields
from threefold.models.quant_fp8 import fp8_scheme, read_compressed_fp8, read_fbgemm_fp8, read_plain_fp8
from threefold.models.quant_int4 import read_awq, read_gptq, read_packed_int4
from threefold.models.spec import ModelSpec, Quantization

COMPRESSED = "compressed-tensors"
PARSERS: Mapping[str, Callable[[Fields], Quantization]] = {
    "fp8": read_plain_fp8,
    "fbgemm_fp8": read_fbgemm_fp8,
    f"{COMPRESSED} float-quantized": read_compressed_fp8,
    f"{COMPRESSED} naive-quantized": read_compressed_fp8,
    "awq": read_awq,
    "gptq": read_gptq,
    f"{COMPRESSED} pack-quantized": read_packed_int4,
}
"""What a checkpoint calls its kind (compressed-tensors: and its format) -> how its section is read."""
SCHEMES: Mapping[str, Callable[[Quantization], QuantScheme]] = {
    "fp8": fp8_scheme,
    "awq": awq_scheme,
    "gptq": gptq_scheme,
    "gptq_v2": gptq_v2_scheme,
    "packed_int4": packed_int4_scheme,
}
"""Kind -> its scheme for one product."""
MADE_HERE: Mapping[str, Quantization] = {
    "fp8": Quantization("fp8", "quantised while loading", is_made_here=True, has_int8_tables=True)
}
"""Kinds that a plain checkpoint can be brought to while it is loaded."""
HEAD = "lm_head"
"""The output head, where it is another matrix than the embedding."""

MODULES = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
"""A layer's products and their places in it."""
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Products that are computed as one."""
_EVERY_PRODUCT = "Linear"


def read_quantization(fields: Fields) -> Quantization | None:
    """What a config.json says of quantised weights; None = it says nothing.

    Raises:
        ModelLoadError: a kind that is not built, or a section that cannot hold.
    """
    section = fields.section("quantization_config") or fields.section("compression_config")
    if section is None:
        return None
    method = section.text("quant_method", COMPRESSED if section.has("format") else "an unnamed scheme")
    kind = f"{method} {section.text('format', '')}".strip() if method == COMPRESSED else method
    if kind not in PARSERS:
        named = f"{kind} {section.text('quant_algo', '')}".strip()  # modelopt is FP8, NVFP4 and others
        raise ModelLoadError(
            f"{fields.source}: weights quantised by {named} are not supported; built are {', '.join(PARSERS)}; or use "
            "the model's unquantised safetensors (bfloat16, float16, float32) or a GGUF file of it (Q8_0, Q4_K, …)"
        )
    return PARSERS[kind](section)


def layer_schemes(spec: ModelSpec, layer: int) -> dict[str, QuantScheme | None]:
    """The scheme of each product of a layer, by its short name; None = plain.

    Raises:
        ModelLoadError: products that are computed as one are not all quantised.
    """
    found = {name: scheme_for(spec, f"model.layers.{layer}.{module}") for name, module in MODULES.items()}
    for together in FUSED:
        plain = [name for name in together if found[name] is None]
        if 0 < len(plain) < len(together):
            raise ModelLoadError(
                f"layer {layer}: {', '.join(plain)} is left plain and the rest of {', '.join(together)} is quantised; "
                "they are one product here and must be quantised together"
            )
    return found


def scheme_for(spec: ModelSpec, module: str) -> QuantScheme | None:
    """The scheme of one product, by its full name; None = plain."""
    quantization = spec.quantization
    if quantization is not None and quantization.packings:
        return packed_scheme(spec, module)
    if quantization is None or not _is_quantised(quantization, module):
        return None
    return SCHEMES[quantization.kind](quantization)


def table_scheme(spec: ModelSpec, module: str) -> TableScheme | None:
    """The scheme of the embedding or of a head of its own; None = plain.

    Checkpoints leave both plain. Of 8B parameters they are 15 in 100, so beside quantised products they would be a
    quarter of the bytes with FP8, 40 in 100 with four bits, and one token would wait a tenth of its time for the head.
    """
    if spec.quantization is not None and spec.quantization.has_int8_tables:
        return Int8WhileLoading()
    return packed_scheme(spec, module)


def packed_scheme(spec: ModelSpec, module: str) -> GgufScheme | None:
    """The scheme of a product, embedding or head that stays as packed as its GGUF file has it; None = it does not."""
    packings = {} if spec.quantization is None else spec.quantization.packings
    return GgufScheme(packings[module]) if module in packings else None


def _is_quantised(quantization: Quantization, module: str) -> bool:
    if any(_names(pattern, module) for pattern in quantization.ignored):
        return False
    targets = quantization.targets
    return not targets or any(target == _EVERY_PRODUCT or _names(target, module) for target in targets)


def _names(pattern: str, module: str) -> bool:
    """Whether a pattern names a module: re: and an expression from its beginning, else whole dotted pieces of it."""
    if not pattern.startswith("re:"):
        return f".{pattern}." in f".{module}."
    try:
        return re.match(pattern.removeprefix("re:"), module) is not None
    except re.error as error:
        raise ModelLoadError(f"quantization: {pattern!r} is no regular expression: {error}") from error
