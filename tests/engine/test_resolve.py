"""Each value that is decided, the reason it carries, and each one that cannot hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from threefold.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from threefold.engine.resolve import Facts, resolve_limits
from threefold.errors import ConfigError

CPU = Facts(max_positions=8192, checkpoint_dtype="bfloat16", is_gpu=False, preferred_cpu_dtype="bfloat16")
GPU = Facts(max_positions=40960, checkpoint_dtype="bfloat16", is_gpu=True)


def model(**values: object) -> EngineConfig:
    return EngineConfig(model=ModelConfig(**values))  # type: ignore[arg-type]


def scheduler(**values: object) -> EngineConfig:
    return EngineConfig(scheduler=SchedulerConfig(**values))  # type: ignore[arg-type]


def test_defaults_differ_by_device_and_every_value_has_a_reason() -> None:
    cpu, gpu = resolve_limits(EngineConfig(), CPU), resolve_limits(EngineConfig(), GPU)

    assert (64, 512) == (cpu.max_num_seqs, cpu.max_num_batched_tokens)
    assert (256, 8192) == (gpu.max_num_seqs, gpu.max_num_batched_tokens)
    assert 8192 == cpu.max_model_len
    assert {
        "dtype",
        "kv_cache_dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_queued_reqs",
    } == {reason.name for reason in cpu.reasons}
    assert all(reason.why for reason in cpu.reasons)


def test_rows_step_down_to_the_token_budget() -> None:
    limits = resolve_limits(scheduler(max_num_seqs=512, max_num_batched_tokens=64), CPU)

    assert 64 == limits.max_num_seqs
    assert any("512 asked, stepped down" in reason.why for reason in limits.reasons)


@pytest.mark.parametrize(
    ("asked", "facts", "dtype"),
    [
        ("auto", CPU, "bfloat16"),
        ("auto", replace(CPU, preferred_cpu_dtype="float32"), "float32"),
        ("auto", GPU, "bfloat16"),
        ("auto", replace(GPU, supports_bfloat16=False), "float16"),
        ("auto", replace(GPU, checkpoint_dtype="float32"), "bfloat16"),
        ("float32", GPU, "float32"),
        ("half", GPU, "float16"),
    ],
)
def test_dtype(asked: str, facts: Facts, dtype: str) -> None:
    assert dtype == resolve_limits(model(dtype=asked), facts).dtype


@pytest.mark.parametrize(
    ("asked", "facts", "dtype", "why"),
    [
        ("auto", GPU, "bfloat16", "the model's own"),
        ("auto", replace(CPU, preferred_cpu_dtype="float32"), "float32", "the model's own"),
        ("fp8", GPU, "float8_e4m3fn", "as asked, scales measured at start"),
        ("fp8_e4m3", replace(GPU, has_kv_scales=True), "float8_e4m3fn", "as asked, scales from the checkpoint"),
    ],
)
def test_kv_cache_dtype(asked: str, facts: Facts, dtype: str, why: str) -> None:
    limits = resolve_limits(EngineConfig(cache=CacheConfig(kv_cache_dtype=asked)), facts)

    assert dtype == limits.kv_cache_dtype
    assert f"kv_cache_dtype {dtype}: {why}" in [str(reason) for reason in limits.reasons]


@pytest.mark.parametrize(
    ("asked", "facts", "said"),
    [
        ("fp8", CPU, "--kv-cache-dtype fp8 needs a card"),
        ("fp8", replace(GPU, supports_fp8=False), "this card has no FP8 numbers"),
        ("fp8_e5m2", GPU, "--kv-cache-dtype fp8_e5m2 is not built"),
    ],
)
def test_kv_cache_dtypes_that_cannot_hold(asked: str, facts: Facts, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_limits(EngineConfig(cache=CacheConfig(kv_cache_dtype=asked)), facts)


@pytest.mark.parametrize(
    ("config", "facts", "part"),
    [
        (model(dtype="int8"), GPU, "int8"),
        (model(dtype="float16"), CPU, "float16"),
        (model(max_model_len=0), CPU, "at least 1"),
        (model(max_model_len=9000), CPU, "8192"),
        (scheduler(max_num_seqs=0), CPU, "at least 1"),
        (scheduler(max_num_batched_tokens=0), CPU, "at least 1"),
        (EngineConfig(parallel=ParallelConfig(tensor_parallel_size=0)), GPU, "at least 1"),
        (EngineConfig(parallel=ParallelConfig(tensor_parallel_size=2)), CPU, "no card"),
        (EngineConfig(parallel=ParallelConfig(tensor_parallel_size=2)), GPU, "1 card"),
        (EngineConfig(parallel=ParallelConfig(tensor_parallel_size=2)), replace(GPU, num_devices=8), "not built"),
    ],
)
def test_what_cannot_hold_is_one_clear_line(config: EngineConfig, facts: Facts, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        resolve_limits(config, facts)

    assert "\n" not in str(caught.value)
