"""What a card has to have compiled, compiled by all cores while the weights are loaded.

Which bodies that are nobody lists: every kind of step is rehearsed with a model of two layers of the same widths.
Knows nothing about bodies or steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from threefold.engine.fit import graph_limits
from threefold.engine.opened import Opened, calibration_limits
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights
from threefold.runner.device import num_usable_cores
from threefold.runner.kv_pool import allocate_pool
from threefold.runner.rehearse import rehearse
from threefold.runner.rows import table_width

log = logging.getLogger(__name__)

MAX_THREADS = 16
"""More would only wait for Python's lock."""
NUM_LAYERS = 2
"""The second takes what the first hands on; further ones are like it."""
MOST_PROMPT_TOKENS = 256
"""Of rehearsed graphs with prompts; of longer prompts a few lengths are rehearsed."""


@contextmanager
def bodies_compiled(opened: Opened) -> Iterator[None]:
    """Compile what the steps of the engine's models need while something else is done; on a CPU nothing."""
    if not opened.device.is_gpu:
        yield
        return
    from threefold.kernels.triton.ahead import CompiledAhead

    with CompiledAhead(min(num_usable_cores(), MAX_THREADS)) as ahead:
        with ahead.rehearsal():
            _rehearse(opened, opened.spec)
            if opened.draft is not None:
                _rehearse(opened, opened.draft.checkpoint.spec, is_draft=True)
        yield


def _rehearse(opened: Opened, spec: ModelSpec, *, is_draft: bool = False) -> None:
    """Go through the steps of a model. It only saves time: where it fails, bodies are compiled as they are met."""
    try:
        _rehearse_short(opened, shortened(spec), is_draft=is_draft)
    except Exception as error:  # noqa: BLE001 (memory that is not there, most likely; what is wrong shows later, too)
        log.warning("kernels are compiled one by one: %s", error)
    opened.device.release_unused()


def shortened(spec: ModelSpec) -> ModelSpec:
    """The same model with few layers, the last with a sliding window where some have one."""
    num_layers = min(NUM_LAYERS, spec.num_layers)
    return replace(spec, num_layers=num_layers, window_layers=(num_layers - 1,) if spec.window_layers else ())


def _rehearse_short(opened: Opened, spec: ModelSpec, *, is_draft: bool) -> None:
    device, limits, block_size = opened.device, opened.limits, opened.config.cache.block_size
    decoder = Decoder(spec, opened.dtype, device.torch_device)
    decoder.load(DummyWeights(spec, seed=0).read(opened.dtype, device.torch_device))
    num_blocks = -(-limits.max_num_batched_tokens // block_size)
    kv = allocate_pool(spec, num_blocks, block_size, opened.kv_dtype, device.torch_device)
    graphs = graph_limits(opened, spec, limits.max_num_seqs, limits.max_model_len, MOST_PROMPT_TOKENS)
    width = table_width(limits.max_model_len, block_size, graphs.max_draft)
    steps = calibration_limits(opened, num_blocks)
    rehearse(decoder, kv, device, graphs, steps, max_blocks=width, is_draft=is_draft)
