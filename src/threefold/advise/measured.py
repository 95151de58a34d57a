"""Measures a machine: the stored or fresh cost curve of a loaded engine, and what a step takes beyond it."""

from __future__ import annotations

import statistics
import time

from threefold.advise.facts import MachineFacts
from threefold.config import SpeculationConfig
from threefold.cost import CostCurve, StepShape
from threefold.draft.policy import NoDrafts
from threefold.engine.answer import Answer
from threefold.engine.build import make_tokenizer
from threefold.engine.core import EngineCore
from threefold.engine.loaded import LoadedEngine
from threefold.engine.outputs import EngineInfo
from threefold.request import Request, SamplingParams
from threefold.text.tokenizer import Tokenizer

PROMPT_TOKENS = 32
NUM_STEPS = 32
ROWS = 16


def measure_machine(loaded: LoadedEngine) -> MachineFacts:
    """The facts of a loaded engine; takes some seconds, and a few more when no curve is stored yet."""
    curve, source = loaded.cost_curve()
    info = loaded.info()
    spec, config = loaded.opened.spec, loaded.opened.config
    num_rows = min(ROWS, info.max_num_seqs)
    step_ms, row_ms = _host(loaded, info, curve, num_rows)
    item_bytes = loaded.opened.dtype.itemsize
    return MachineFacts(
        model=info.model,
        device=loaded.opened.device.name,
        curve=curve.to_dict(),
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=loaded.opened.limits.max_num_batched_tokens,
        weights_bytes=spec.num_parameters * item_bytes,
        kv_token_bytes=spec.kv_bytes_per_token(loaded.opened.kv_dtype.itemsize),
        is_gpu=loaded.opened.device.is_gpu,
        host={"step_ms": step_ms, "row_ms": row_ms},
        notes=(source, f"the rest of a step measured now with 1 and {num_rows} rows", config.model.dtype),
    )


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
        core.add_request(_request(index, info, params))
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


def _request(index: int, info: EngineInfo, params: SamplingParams) -> Request:
    prompt = [(index * 31 + place * 7) % info.vocab_size for place in range(PROMPT_TOKENS)]
    return Request(
        index, prompt, params, max_total_tokens=PROMPT_TOKENS + NUM_STEPS, end_token_ids=frozenset(),
        arrival_s=time.monotonic(),
    )  # fmt: skip
