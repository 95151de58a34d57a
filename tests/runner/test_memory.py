from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.errors import MemoryPlanError
from threefold.runner.memory import (
    CPU_KV_BYTES,
    GIB,
    RESERVE_BYTES,
    STEP_MARGIN,
    MemoryFacts,
    MemoryWishes,
    check_weights_fit,
    logits_bytes,
    plan_memory,
    taken_bytes,
)

CARD = MemoryFacts(
    is_gpu=True,
    total_bytes=100 * GIB,
    free_bytes=98 * GIB,
    weights_bytes=16 * GIB,
    peak_bytes=2 * GIB,
    block_bytes=2 * 1024 * 1024,
    block_size=16,
    vocab_size=150_000,
)
HOST = replace(CARD, is_gpu=False, total_bytes=24 * GIB, free_bytes=20 * GIB, weights_bytes=GIB // 4)
WISHES = MemoryWishes(max_model_len=8192, is_len_explicit=False, max_num_seqs=64, max_num_batched_tokens=512)


def reasons(plan):
    return {line.name: line.why for line in plan.lines}


def test_a_card_gives_what_weights_peak_and_logits_leave():
    plan = plan_memory(CARD, WISHES)
    left = int(0.9 * CARD.total_bytes) - taken_bytes(CARD, WISHES)
    assert plan.num_blocks == left // CARD.block_bytes
    assert (plan.max_model_len, plan.max_num_seqs) == (8192, 64)
    assert "measured peak" in reasons(plan)["num_blocks"]


def test_memory_that_others_hold_is_not_counted_on():
    assert plan_memory(replace(CARD, free_bytes=40 * GIB), WISHES).num_blocks * CARD.block_bytes < 22 * GIB


def test_a_cpu_takes_no_more_than_the_default_or_the_need():
    plan = plan_memory(HOST, WISHES)
    assert plan.num_blocks == CPU_KV_BYTES // HOST.block_bytes
    few = replace(WISHES, max_num_seqs=2, max_model_len=1000)
    assert plan_memory(HOST, few).num_blocks == 2 * 63
    assert "2 requests of 1000 tokens" in reasons(plan_memory(HOST, few))["num_blocks"]


def test_exact_sizes_are_taken_as_asked():
    assert plan_memory(HOST, replace(WISHES, num_blocks=600)).num_blocks == 600
    plan = plan_memory(HOST, replace(WISHES, kv_cache_memory_bytes=2 * GIB))
    assert plan.num_blocks == 2 * GIB // HOST.block_bytes


@pytest.mark.parametrize("wish", [{"num_blocks": 10**6}, {"kv_cache_memory_bytes": 500 * GIB}])
def test_exact_sizes_beyond_the_memory_are_refused(wish):
    with pytest.raises(MemoryPlanError, match="are left"):
        plan_memory(HOST, replace(WISHES, **wish))


@pytest.mark.parametrize("wish", [{"num_blocks": 100}, {"kv_cache_memory_bytes": GIB // 4, "is_len_explicit": True}])
def test_too_few_blocks_for_one_request_name_the_three_settings(wish):
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory(HOST, replace(WISHES, **wish))
    for setting in (
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--max-model-len",
        "--num-gpu-blocks-override",
    ):
        assert setting in str(caught.value)
    assert "8192" in str(caught.value)


def test_the_models_own_length_is_stepped_down_to_what_fits():
    plan = plan_memory(HOST, replace(WISHES, max_model_len=131072, kv_cache_memory_bytes=GIB))
    assert plan.max_model_len == 512 * 16
    assert "131072" in reasons(plan)["max_model_len"]


def test_rows_are_stepped_down_where_their_logits_leave_no_room():
    crowded = replace(WISHES, max_num_seqs=1024, max_num_batched_tokens=8192, max_draft=8)
    tight = replace(CARD, free_bytes=35 * GIB)
    plan = plan_memory(tight, crowded)
    assert plan.max_num_seqs < 1024
    assert plan.num_blocks * 16 >= 8192
    assert "1024" in reasons(plan)["max_num_seqs"]


def test_a_length_that_no_number_of_rows_makes_room_for_costs_no_rows():
    plan = plan_memory(replace(CARD, free_bytes=30 * GIB), replace(WISHES, max_model_len=10**6))
    assert plan.max_num_seqs == 64
    assert plan.max_model_len == plan.num_blocks * 16


def test_rows_beyond_the_blocks_are_stepped_down():
    plan = plan_memory(HOST, replace(WISHES, num_blocks=20, max_model_len=300))
    assert plan.max_num_seqs == 20
    assert "at least one of 20 blocks" in reasons(plan)["max_num_seqs"]


def test_a_model_that_does_not_fit_says_what_takes_the_room():
    with pytest.raises(MemoryPlanError, match=r"weights take 40\.00 GiB"):
        plan_memory(replace(CARD, weights_bytes=40 * GIB, free_bytes=30 * GIB), WISHES)


@given(
    free=st.integers(1, 64),
    length=st.integers(1, 200_000),
    seqs=st.integers(1, 2000),
    is_gpu=st.booleans(),
    explicit=st.booleans(),
)
def test_what_is_planned_holds(free, length, seqs, is_gpu, explicit):
    facts = replace(CARD, is_gpu=is_gpu, total_bytes=80 * GIB, free_bytes=free * GIB)
    wishes = replace(
        WISHES, max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=2048, is_len_explicit=explicit
    )
    try:
        plan = plan_memory(facts, wishes)
    except MemoryPlanError:
        return
    held = plan.num_blocks * facts.block_bytes + facts.weights_bytes + facts.peak_bytes
    held += logits_bytes(facts, replace(wishes, max_num_seqs=plan.max_num_seqs))
    assert held <= facts.free_bytes
    assert 1 <= plan.max_model_len <= plan.num_blocks * facts.block_size
    assert plan.max_model_len == length or not explicit
    assert 1 <= plan.max_num_seqs <= seqs


GIBS = st.integers(0, 160 * 2**10).map(lambda mebibytes: mebibytes * 2**20)


@st.composite
def situations(draw):
    total = draw(GIBS)
    facts = MemoryFacts(
        is_gpu=draw(st.booleans()),
        total_bytes=total,
        free_bytes=draw(st.integers(0, total)),
        weights_bytes=draw(GIBS),
        peak_bytes=draw(st.integers(0, 16 * GIB)),
        block_bytes=draw(st.integers(1, 64 * 2**20)),
        block_size=draw(st.sampled_from([1, 8, 16, 64])),
        vocab_size=draw(st.integers(1, 300_000)),
        position_bytes=draw(st.none() | st.integers(1, 8 * 2**20)),
        graphs_bytes=draw(st.integers(0, 2 * GIB)),
    )
    wishes = MemoryWishes(
        max_model_len=draw(st.integers(1, 200_000)),
        is_len_explicit=draw(st.booleans()),
        max_num_seqs=draw(st.integers(1, 4096)),
        max_num_batched_tokens=draw(st.integers(1, 32_768)),
        max_draft=draw(st.integers(0, 16)),
        gpu_memory_utilization=draw(st.floats(0.01, 1.0)),
        kv_cache_memory_bytes=draw(st.none() | st.integers(1, 160 * GIB)),
        num_blocks=draw(st.none() | st.integers(1, 10**6)),
    )
    return facts, wishes


@given(situations())
def test_no_plan_takes_more_than_there_is_and_a_refusal_names_a_remedy(situation):
    facts, wishes = situation
    try:
        plan = plan_memory(facts, wishes)
    except MemoryPlanError as error:
        assert any(word in str(error) for word in ("raise", "lower", "smaller", "are left"))
        return
    chosen = replace(wishes, max_num_seqs=plan.max_num_seqs)
    held = plan.num_blocks * facts.block_bytes + taken_bytes(facts, chosen)
    assert held <= facts.free_bytes - (RESERVE_BYTES if facts.is_gpu else 0)
    if facts.is_gpu and wishes.num_blocks is None and wishes.kv_cache_memory_bytes is None:
        assert held <= wishes.gpu_memory_utilization * facts.total_bytes
    assert 1 <= plan.max_num_seqs <= min(wishes.max_num_seqs, plan.num_blocks)
    assert 1 <= plan.max_model_len <= min(wishes.max_model_len, plan.num_blocks * facts.block_size)
    changed = {line.name for line in plan.lines}
    assert ("max_num_seqs" in changed) == (plan.max_num_seqs < wishes.max_num_seqs)
    assert ("max_model_len" in changed) == (plan.max_model_len < wishes.max_model_len)


@pytest.mark.parametrize("seqs", [32, 256, 1024, 2048, 4096])
@pytest.mark.parametrize("max_draft", [0, 8])
@pytest.mark.parametrize("free_gib", [140, 48, 24])
def test_any_number_of_rows_starts(seqs, max_draft, free_gib):
    wishes = replace(WISHES, max_num_seqs=seqs, max_num_batched_tokens=8192, max_draft=max_draft)
    facts = replace(CARD, total_bytes=free_gib * GIB, free_bytes=free_gib * GIB, graphs_bytes=GIB)
    plan = plan_memory(facts, wishes)
    assert plan.num_blocks * facts.block_size >= 8192
    assert plan.max_num_seqs >= min(32, seqs)


def test_what_graphs_and_the_allocator_hold_is_not_given_to_the_cache():
    plain = plan_memory(CARD, WISHES).num_blocks
    assert plan_memory(replace(CARD, graphs_bytes=2 * GIB), WISHES).num_blocks == plain - 1024
    whole = replace(WISHES, gpu_memory_utilization=1.0)
    left = CARD.free_bytes - plan_memory(CARD, whole).num_blocks * CARD.block_bytes - CARD.weights_bytes
    step = CARD.peak_bytes + logits_bytes(CARD, WISHES)
    assert left >= RESERVE_BYTES + step + int(STEP_MARGIN * step)


def test_measured_positions_replace_the_formula():
    assert logits_bytes(replace(CARD, position_bytes=1000), WISHES) == 64 * 1000


def test_rows_are_stepped_down_for_an_exact_cache_too():
    crowded = replace(WISHES, max_num_seqs=1024, max_num_batched_tokens=8192, kv_cache_memory_bytes=78 * GIB)
    plan = plan_memory(CARD, crowded)
    assert plan.num_blocks == 78 * GIB // CARD.block_bytes
    assert plan.max_num_seqs < 1024


def test_weights_that_are_more_than_free_are_refused_before_they_are_loaded():
    check_weights_fit(10 * GIB, 10 * GIB)
    with pytest.raises(MemoryPlanError, match=r"take 11\.00 GiB and 10\.00 GiB are free: use a smaller model"):
        check_weights_fit(10 * GIB, 11 * GIB)
