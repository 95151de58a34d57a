"""Captured graphs give what the same steps give kernel by kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.request import SamplingParams
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.inputs import StepArrays
from threefold.runner.path import _arrays_of
from threefold.runner.rows import Growth

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]


def random_step(dice, num_rows, num_new, context, max_blocks):
    """Rows that are all as long, over consecutive blocks."""
    blocks_per_row = -(-context // 16)
    new = np.full(num_rows, num_new)
    positions = np.tile(np.arange(context - num_new, context), num_rows)
    row_of = np.repeat(np.arange(num_rows), num_new)
    tables = np.arange(num_rows * blocks_per_row).reshape(num_rows, -1)
    places = (np.arange(num_rows)[:, None] * max_blocks + np.arange(blocks_per_row)).reshape(-1)
    return StepArrays(
        token_ids=dice.integers(0, 1000, num_rows * num_new),
        positions=positions,
        slots=tables[row_of, positions // 16] * 16 + positions % 16,
        row_ids=np.arange(num_rows),
        row_starts=np.append(0, new.cumsum()),
        context_lens=np.full(num_rows, context),
        logit_tokens=np.arange(num_rows * num_new),
        keep_rows=np.full(num_rows * num_new, 64),
        max_new=num_new,
        max_context=context,
        has_unknown=False,
        growth=Growth(places.tolist(), tables.reshape(-1).tolist()),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_rows", "num_new", "context"), [(1, 1, 30), (7, 1, 200), (64, 1, 90), (5, 4, 60), (33, 3, 300)]
)
@torch.inference_mode()
def test_logits_and_tokens_are_those_of_the_eager_pass(card_engine, dtype, num_rows, num_new, context):
    engine = card_engine(dtype, num_drafts=3)
    forward = engine.path.forward
    arrays = random_step(
        np.random.default_rng(1), num_rows, num_new, context, engine.path.device_rows.block_tables.shape[1]
    )
    for layer in engine.kv:  # a context that is the same for both
        layer.keys.normal_(generator=torch.Generator("cuda").manual_seed(1))
        layer.values.normal_(generator=torch.Generator("cuda").manual_seed(2))
    num = len(arrays.logit_tokens)
    eager = forward._eager.run(arrays, num)
    expected = eager.logits.clone()
    graphed = forward.run(arrays, num)
    assert graphed.likely is not None, "no graph was replayed"
    scale = expected.abs().max()
    tolerance = 2e-5 if dtype is torch.float32 else 3e-2
    assert (graphed.logits - expected).abs().max() <= tolerance * scale
    assert torch.equal(graphed.likely.tokens, graphed.logits.argmax(-1))
    top = expected.topk(2).values
    is_clear = top[:, 0] - top[:, 1] > 2 * tolerance * scale
    assert torch.equal(graphed.likely.tokens[is_clear], expected.argmax(-1)[is_clear])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(
    ("num_rows", "num_new", "context"), [(1, 200, 200), (2, 100, 150), (5, 40, 300), (1, 18, 18), (2, 450, 500)]
)
@torch.inference_mode()
def test_prompts_in_a_graph_give_what_the_eager_pass_gives(card_engine, dtype, tolerance, num_rows, num_new, context):
    engine = card_engine(dtype, max_prompt_tokens=1024)
    forward = engine.path.forward
    limits = CalibrationLimits(1024, 16, 64, 1024, 512)
    batch = made_up_batch(num_rows, num_new, context, limits, torch.device("cuda", 0))
    for layer in engine.kv:  # a context that is the same for both
        layer.keys.normal_(generator=torch.Generator("cuda").manual_seed(1))
        layer.values.normal_(generator=torch.Generator("cuda").manual_seed(2))
    arrays = _arrays_of(batch, engine.path.device_rows)
    expected = forward._eager.run(arrays, 1).logits.clone()
    graphed = forward.run(arrays, 1)
    assert graphed.likely is not None, "no graph was replayed"
    assert (graphed.logits - expected).abs().max() <= tolerance * expected.abs().max()


def test_whole_answers_with_graphs_and_without(card_engine, mixed_prompts, mixed_wishes):
    with_graphs = card_engine().answers(mixed_prompts, mixed_wishes)
    without = card_engine(has_graphs=False).answers(mixed_prompts, mixed_wishes)
    same = sum(a == b for a, b in zip(with_graphs, without, strict=True))
    print(f"{same} of {len(without)} answers are the same with graphs and without")
    assert same >= 60, "products of other sizes round otherwise; more than a few near-ties in 64 answers are a fault"


def test_capture_is_quick_and_small(card_engine):
    report = card_engine(torch.bfloat16, num_drafts=5).report
    print(report)
    assert report.num_graphs > 20
    assert report.max_tokens >= 64 * 6
    assert report.num_bytes < 1 << 30


def test_one_token_and_a_prompt_beyond_the_graphs(card_engine):
    engine = card_engine(max_num_batched_tokens=2048)
    wishes = [SamplingParams(max_tokens=3, temperature=0.0)] * 2
    answers = engine.answers([[7], [3] * 400], wishes)
    assert [len(answer) for answer in answers] == [3, 3]
