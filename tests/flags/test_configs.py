"""Command lines as people type them, to configs."""

import shlex

import pytest

from threefold.config import EngineConfig, ServerConfig, SpeculationConfig
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, parse_command, server_config
from threefold.flags.flag import Parsed
from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS

ARTICLE = (
    "Qwen/Qwen3-8B --tensor-parallel-size 1 --gpu-memory-utilization 0.9 --max-num-seqs 256 "
    "--enable-prefix-caching --port 8000"
)


def parse(line: str) -> Parsed:
    return parse_command(shlex.split(line), SERVER_FLAGS + ENGINE_FLAGS)


def engine(line: str) -> EngineConfig:
    parsed = parse(line)
    return engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)


def test_no_flags_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("THREEFOLD_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert engine("") == EngineConfig()
    assert server_config(parse("")) == ServerConfig()


def test_the_command_that_readers_copy() -> None:
    config = engine(ARTICLE)
    assert config.model.model == "Qwen/Qwen3-8B"
    assert config.parallel.tensor_parallel_size == 1
    assert config.cache.gpu_memory_utilization == 0.9
    assert config.cache.enable_prefix_caching
    assert config.scheduler.max_num_seqs == 256
    assert server_config(parse(ARTICLE)).port == 8000
    assert not parse(ARTICLE).warnings


@pytest.mark.parametrize(
    "block",
    [
        """'{"method":"ngram","num_speculative_tokens":5}'""",
        '{"method":"ngram","num_speculative_tokens":5}',
        "{method:ngram,num_speculative_tokens:5}",
        "method:ngram num_speculative_tokens:5",
    ],
)
def test_ngram_however_the_quotes_went(block: str) -> None:
    config = engine(f"{ARTICLE} --speculative-config {block}")
    assert config.speculation == SpeculationConfig(methods=("ngram",), num_speculative_tokens=5)
    assert config.model.model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "flags",
    [
        """-sc '{"method":"draft_model","draft_model":"Qwen/Qwen3-0.6B","num_speculative_tokens":5}'""",
        '--speculative-config {"method":"draft_model","draft_model":"Qwen/Qwen3-0.6B",num_speculative_tokens:5}',
        """-sc '{"model":"Qwen/Qwen3-0.6B","num_speculative_tokens":5}'""",
        "--spec-method draft_model --spec-model Qwen/Qwen3-0.6B --spec-tokens 5",
        "--speculative-model Qwen/Qwen3-0.6B --num-speculative-tokens 5",
        "--speculative-config.method draft_model --speculative-config.model Qwen/Qwen3-0.6B "
        "--speculative_config.num-speculative-tokens 5",
    ],
)
def test_draft_model_in_every_spelling(flags: str) -> None:
    wanted = SpeculationConfig(methods=("draft_model",), draft_model="Qwen/Qwen3-0.6B", num_speculative_tokens=5)
    assert engine(f"{ARTICLE} {flags}").speculation == wanted


def test_flags_of_vllm_0_6() -> None:
    config = engine("M --speculative-model [ngram] --num-speculative-tokens 4 --ngram-prompt-lookup-max 4")
    assert config.speculation.methods == ("ngram",)
    assert config.speculation.prompt_lookup_max == 4


def test_no_speculation_and_later_wins() -> None:
    assert engine("--spec-tokens 3 --no-speculation").speculation.methods == ()
    assert engine("--no-speculation --speculation").speculation == SpeculationConfig()


def test_json_and_single_keys_join() -> None:
    config = engine("""-sc '{"method":"ngram","num_speculative_tokens":5}' --speculative-config.prompt_lookup_max 3""")
    assert (config.speculation.num_speculative_tokens, config.speculation.prompt_lookup_max) == (5, 3)


def test_server_flags() -> None:
    line = "--api-key a b --api-key c --host 0.0.0.0 --uds /tmp/s --allowed-origins '[\"*\"]' --shutdown-timeout 5 "
    config = server_config(
        parse(line + "--disable-log-stats --enable-log-requests --log-format json --stream-interval 4")
    )
    assert config.api_keys == ("a", "b", "c")
    assert config.allowed_origins == ("*",)
    assert (config.host, config.uds, config.shutdown_timeout_s) == ("0.0.0.0", "/tmp/s", 5.0)
    assert config.log_stats_interval_s == 0.0
    assert config.enable_log_requests
    assert (config.log_format, config.stream_interval) == ("json", 4)
    assert not server_config(parse("--disable-fastapi-docs")).enable_docs


def test_keys_come_from_the_environment_unless_flags_give_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "x, y")
    assert server_config(parse("")).api_keys == ("x", "y")
    assert server_config(parse("--api-key z")).api_keys == ("z",)


def test_sizes_and_automatic_lengths() -> None:
    assert engine("--max-model-len 32k").model.max_model_len == 32_000
    assert engine("--max-model-len -1").model.max_model_len is None
    assert engine("--max-model-len auto").model.max_model_len is None
    assert engine("--kv-cache-memory-bytes 4G").cache.kv_cache_memory_bytes == 4 * 2**30
    assert engine("-tp=1 -q none").model.quantization is None
    assert engine("-q fp8").model.quantization == "fp8"
    assert engine("-q awq_marlin").model.quantization == "awq"
    assert engine("--kv-cache-dtype fp8_e4m3").cache.kv_cache_dtype == "fp8_e4m3"
    assert engine("--dtype half").model.dtype == "float16"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("A --model B", "two models are given: A and --model B"),
        ("--ssl-keyfile k", "belong together"),
        ("--quantization mxfp4", "known to vLLM, not built"),
        ("--kv-cache-dtype fp8_e5m2", "known to vLLM, not built"),
        ("--load-format tensorizer", "known to vLLM, not built"),
        ("--gpu-memory-utilization 1.2", "above 0 and at most 1"),
        ("--port 99999", "between 0 and 65535"),
        ("--max-num-seqs 0", "at least 1"),
        ("--overload-status 500", "503, 429"),
    ],
)
def test_mistakes(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine(line)
        server_config(parse(line))
    assert said in str(caught.value)


def test_the_same_model_twice_is_one_model() -> None:
    assert engine("A --model A").model.model == "A"
