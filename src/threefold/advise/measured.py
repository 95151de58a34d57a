"""Measures a machine: the stored or fresh cost curve of a loaded engine, what a step takes beyond it, and prompts.

The curve holds best times, of shapes that the controller asks about; what is measured here is what steps of a running
engine take in the middle, so that loads are foreseen as they will be.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict

from threefold.advise.cores import core_with
from threefold.advise.curve_executor import num_pairs, prompt_shape
from threefold.advise.facts import MachineFacts
from threefold.advise.measured_steps import made_up_request, measure_steps
from threefold.advise.simulate import Settings
from threefold.cost import CostCurve, StepShape
from threefold.engine.core import EngineCore
from threefold.engine.loaded import LoadedEngine
from threefold.engine.outputs import EngineInfo
from threefold.models.shapes import kept_bytes
from threefold.request import SamplingParams

PROMPT_SECONDS = 10.0
"""Prompts are timed for so long at most, each at least once …"""
PROMPT_ROUNDS = 3
"""… and so many times where there is time."""
SEVERAL = 4
"""Short prompts in a step."""


def measure_machine(loaded: LoadedEngine) -> MachineFacts:
    """The facts of a loaded engine; takes some seconds, and a few more when no curve is stored yet."""
    curve, source = loaded.cost_curve()
    info = loaded.info()
    opened = loaded.opened
    spec, model = opened.spec, opened.config.model
    steps = measure_steps(loaded, info, curve)
    return MachineFacts(
        model=info.model,
        device=opened.device.name,
        curve=curve.to_dict(),
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=opened.limits.max_num_batched_tokens,
        weights_bytes=kept_bytes(spec, opened.dtype, opened.device.torch_device),
        kv_token_bytes=spec.kv_bytes_per_token(opened.kv_dtype.itemsize),
        is_gpu=opened.device.is_gpu,
        is_dummy=model.load_format == "dummy",
        quantization="" if spec.quantization is None else spec.quantization.kind,
        is_kv8=opened.kv_dtype.itemsize == 1,
        host=asdict(steps.plain),
        asking=None if steps.asking is None else asdict(steps.asking),
        verifying=None if steps.verifying is None else asdict(steps.verifying),
        prompts=_prompts(loaded, info).to_dict(),
        notes=(source, "whole steps measured now", model.dtype),
    )


def _prompts(loaded: LoadedEngine, info: EngineInfo) -> CostCurve:
    """Steps that feed prompts, the median of each: one prompt of powers of two up to two chunks, and several of fewer
    tokens each. These are as many tokens that look at fewer others; without them nothing tells the two apart.
    """
    chunk = loaded.opened.limits.max_num_batched_tokens
    longest = min(2 * chunk, info.max_model_len - 1, info.num_blocks * info.block_size - 1)
    lengths = [1 << power for power in range(5, 20) if 1 << power < longest] + [longest]
    batches = [(SEVERAL, length) for length in lengths if SEVERAL * length <= chunk and SEVERAL <= info.max_num_seqs]
    core = core_with(loaded, Settings(info.max_num_seqs, chunk, has_prefix_cache=False))
    readings: dict[StepShape, list[float]] = {}
    began_s = time.perf_counter()
    for turn in range(PROMPT_ROUNDS):
        if turn and time.perf_counter() - began_s > PROMPT_SECONDS:
            break
        for num, length in [*((1, length) for length in lengths), *batches]:
            for shape, ms in _timed_prompts(core, info, num, length):
                readings.setdefault(shape, []).append(ms)
    return CostCurve.from_measurements([(shape, statistics.median(ms)) for shape, ms in readings.items()])


def _timed_prompts(core: EngineCore, info: EngineInfo, num: int, length: int) -> list[tuple[StepShape, float]]:
    """(shape, ms) of each step that so many prompts take, nothing else running; several fit into one step."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for index in range(num):
        core.add_request(made_up_request(index, info, params, length))
    timed = []
    num_done = 0
    while core.has_work:
        before = core.stats()
        began_s = time.perf_counter()
        core.step()
        took_ms = (time.perf_counter() - began_s) * 1000
        num_new = core.stats().prompt_tokens_computed - before.prompt_tokens_computed
        if num_new:
            pairs = num * num_pairs(num_new // num, num_done)
            timed.append((prompt_shape(num_new, pairs), took_ms))
            num_done += num_new
    return timed
