"""Measures a machine: the stored or fresh cost curve of a loaded engine, what a step takes beyond it, and prompts.

The curve holds best times, of shapes that the controller asks about; what is measured here is what steps of a running
engine take in the middle, so that loads are foreseen as they will be.
"""

from __future__ import annotations

import statistics
import time

from threefold.advise.cores import core_with
from threefold.advise.curve_executor import num_pairs, prompt_shape
from threefold.advise.facts import MachineFacts
from threefold.advise.simulate import Settings
from threefold.config import SpeculationConfig
from threefold.cost import CostCurve, StepShape
from threefold.draft.policy import NoDrafts
from threefold.engine.answer import Answer
from threefold.engine.build import make_tokenizer
from threefold.engine.core import EngineCore
from threefold.engine.loaded import LoadedEngine
from threefold.engine.outputs import EngineInfo
from threefold.models.shapes import kept_bytes
from threefold.request import Request, SamplingParams
from threefold.text.tokenizer import Tokenizer

PROMPT_TOKENS = 32
NUM_STEPS = 32
ROWS = 16
PROMPT_SECONDS = 10.0
"""Prompts are timed for so long at most, each at least once …"""
PROMPT_ROUNDS = 3
"""… and so many times where there is time."""


def measure_machine(loaded: LoadedEngine) -> MachineFacts:
    """The facts of a loaded engine; takes some seconds, and a few more when no curve is stored yet."""
    curve, source = loaded.cost_curve()
    info = loaded.info()
    opened = loaded.opened
    spec, model = opened.spec, opened.config.model
    num_rows = min(ROWS, info.max_num_seqs)
    step_ms, row_ms = _host(loaded, info, curve, num_rows)
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
        host={"step_ms": step_ms, "row_ms": row_ms},
        prompts=_prompts(loaded, info).to_dict(),
        notes=(source, f"the rest of a step measured now with 1 and {num_rows} rows", model.dtype),
    )


def _prompts(loaded: LoadedEngine, info: EngineInfo) -> CostCurve:
    """Steps that feed a prompt, by their length: powers of two up to two chunks, the median of each."""
    chunk = loaded.opened.limits.max_num_batched_tokens
    longest = min(2 * chunk, info.max_model_len - 1, info.num_blocks * info.block_size - 1)
    lengths = [1 << power for power in range(5, 20) if 1 << power < longest] + [longest]
    core = core_with(loaded, Settings(info.max_num_seqs, chunk, has_prefix_cache=False))
    readings: dict[StepShape, list[float]] = {}
    began_s = time.perf_counter()
    for turn in range(PROMPT_ROUNDS):
        if turn and time.perf_counter() - began_s > PROMPT_SECONDS:
            break
        for length in lengths:
            for shape, ms in _timed_prompt(core, info, length):
                readings.setdefault(shape, []).append(ms)
    return CostCurve.from_measurements([(shape, statistics.median(ms)) for shape, ms in readings.items()])


def _timed_prompt(core: EngineCore, info: EngineInfo, length: int) -> list[tuple[StepShape, float]]:
    """(shape, ms) of each step that a prompt takes, nothing else running."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    core.add_request(_request(0, info, params, length))
    timed = []
    num_done = 0
    while core.has_work:
        before = core.stats().prompt_tokens_computed
        began_s = time.perf_counter()
        core.step()
        took_ms = (time.perf_counter() - began_s) * 1000
        num_new = core.stats().prompt_tokens_computed - before
        if num_new:
            timed.append((prompt_shape(num_new, num_pairs(num_new, num_done)), took_ms))
            num_done += num_new
    return timed


def _host(loaded: LoadedEngine, info: EngineInfo, curve: CostCurve, num_rows: int) -> tuple[float, float]:
    """(ms a step, ms a row and step) beyond the curve, never negative."""
    tokenizer = make_tokenizer(info)
    alone = _beyond_ms(loaded, info, curve, tokenizer, 1)
    if num_rows < 2:
        return max(alone, 0.0), 0.0
    many = _beyond_ms(loaded, info, curve, tokenizer, num_rows)
    row_ms = max((many - alone) / (num_rows - 1), 0.0)
    return max(alone - row_ms, 0.0), row_ms


def _beyond_ms(loaded: LoadedEngine, info: EngineInfo, curve: CostCurve, tokenizer: Tokenizer, num_rows: int) -> float:
    """Median over steps of one token a row: time of the step, text included, less the curve's."""
    core = loaded.core(SpeculationConfig(methods=()), NoDrafts())
    params = SamplingParams(temperature=0.0, max_tokens=NUM_STEPS, ignore_eos=True)
    answers = {index: Answer(index, tokenizer, params) for index in range(num_rows)}
    for index in range(num_rows):
        core.add_request(_request(index, info, params, PROMPT_TOKENS))
    beyond = []
    while core.has_work:
        took_ms, num_tokens, num_output = _timed_step(core, answers)
        if num_tokens == num_rows:  # every row was fed one token: no prompt among them
            context = PROMPT_TOKENS + num_output // num_rows
            shape = StepShape(num_rows, num_rows, num_rows * context)
            beyond.append(took_ms - curve.forward_ms(shape))
    return statistics.median(beyond[2:] or beyond or [0.0])


def _timed_step(core: EngineCore, answers: dict[int, Answer]) -> tuple[float, int, int]:
    """(ms, tokens that the step brought, output tokens so far)."""
    before = core.stats()
    began_s = time.perf_counter()
    deltas = core.step()
    for delta in deltas:
        answers[delta.request_id].push_delta(delta)
    took_ms = (time.perf_counter() - began_s) * 1000
    is_prompt = core.stats().prompt_tokens_computed > before.prompt_tokens_computed
    return took_ms, 0 if is_prompt else sum(len(delta.token_ids) for delta in deltas), before.generated_tokens


def _request(index: int, info: EngineInfo, params: SamplingParams, length: int) -> Request:
    prompt = [(index * 31 + place * 7) % info.vocab_size for place in range(length)]
    most = length + (params.max_tokens or 1)
    return Request(
        index, prompt, params, max_total_tokens=most, end_token_ids=frozenset(),
        arrival_s=time.monotonic(),
    )  # fmt: skip
