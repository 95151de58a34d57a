from pathlib import Path

import pytest

from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, parse_command, server_config
from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS

FLAGS = SERVER_FLAGS + ENGINE_FLAGS


@pytest.fixture
def config_file(tmp_path: Path):
    path = tmp_path / "serve.yaml"

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write


def test_every_kind_of_value(config_file) -> None:
    file = config_file(
        "model: Qwen/Qwen3-8B\n"
        "max-num-seqs: 256\n"
        "max_model_len: 32k\n"
        "gpu-memory-utilization: 0.5\n"
        "enable-prefix-caching: false\n"
        "served-model-name: [a, b]\n"
        "api-key: secret\n"
        "revision:\n"
        "no-enable-prompt-tokens-details: true\n"
        "speculative-config:\n"
        "  method: ngram\n"
        "  num_speculative_tokens: 5\n"
    )
    parsed = parse_command(["--config", file], FLAGS)
    engine, server = engine_config(parsed), server_config(parsed)
    assert engine.model.model == "Qwen/Qwen3-8B"
    assert engine.model.served_model_names == ("a", "b")
    assert engine.model.max_model_len == 32_000
    assert engine.model.revision is None
    assert engine.scheduler.max_num_seqs == 256
    assert engine.cache.gpu_memory_utilization == 0.5
    assert not engine.cache.enable_prefix_caching
    assert engine.speculation.num_speculative_tokens == 5
    assert server.api_keys == ("secret",)
    assert not server.enable_prompt_tokens_details


def test_the_command_line_wins_wherever_it_stands(config_file) -> None:
    file = config_file("max-num-seqs: 256\nport: 9000\nenable-prefix-caching: false\nserved-model-name: [a, b]\n")
    words = ["--max-num-seqs", "4", "--config", file, "--enable-prefix-caching", "--served-model-name", "c"]
    parsed = parse_command(words, FLAGS)
    engine = engine_config(parsed)
    assert engine.scheduler.max_num_seqs == 4
    assert engine.cache.enable_prefix_caching
    assert engine.model.served_model_names == ("c",)
    assert server_config(parsed).port == 9000


def test_origins_are_kept(config_file) -> None:
    parsed = parse_command(["--config", config_file("max-num-seqs: 256\n"), "--seed", "1"], FLAGS)
    origins = {assignment.flag.name: assignment.origin for assignment in parsed.assignments}
    assert origins["max-num-seqs"] == "serve.yaml"
    assert origins["seed"] == "command line"


def test_single_keys_change_the_file_s_block_and_a_whole_object_replaces_it(config_file) -> None:
    file = config_file("speculative-config: {method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 3}\n")
    changed = engine_config(parse_command(["--config", file, "--spec-tokens", "2"], FLAGS)).speculation
    assert (changed.num_speculative_tokens, changed.prompt_lookup_max) == (2, 3)
    replaced = engine_config(parse_command(["--config", file, "-sc", '{"method":"ngram"}'], FLAGS)).speculation
    assert replaced.prompt_lookup_max == 8
    off = engine_config(parse_command(["--config", file, "--no-speculation"], FLAGS)).speculation
    assert off.methods == ()


def test_empty_file(config_file) -> None:
    assert parse_command(["--config", config_file("# nothing\n")], FLAGS).assignments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-num-seq: 4\n", "serve.yaml: unknown flag --max-num-seq; nearest: --max-num-seqs"),
        ("max-num-seqs: many\n", "serve.yaml: --max-num-seqs wants a whole number"),
        ("max-num-seqs: [1, 2]\n", "--max-num-seqs takes one value"),
        ("max-num-seqs: true\n", "got 'true'"),
        ("trust-remote-code: true\n", "serve.yaml: --trust-remote-code: not built"),
        ("pipeline-parallel-size: 2\n", "not built"),
        ("config: other.yaml\n", "a file cannot name another one"),
        ("enable-prefix-caching: perhaps\n", "true or false"),
        ("speculative-config: nonsense\n", "one JSON object"),
        ("- a\n- b\n", "got a list"),
        ("a: [1\n", "is no valid YAML"),
        ("a: 1\nb: {{\n", "is no valid YAML"),
        ("!!python/object:os.system x\n", "is no valid YAML"),
        ("a: \x01\n", "is no valid YAML"),
    ],
)
def test_mistakes_are_one_line_with_the_file_s_name(config_file, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command(["--config", config_file(text)], FLAGS)
    assert said in str(caught.value)
    assert "serve.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_harmless_values_of_refused_flags_pass(config_file) -> None:
    file = config_file("pipeline-parallel-size: 1\ntrust-remote-code: false\nenable-lora: false\n")
    assert [a.flag.name for a in parse_command(["--config", file], FLAGS).assignments] == ["config"]


def test_no_such_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        parse_command(["--config", str(tmp_path / "missing.yaml")], FLAGS)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="is no UTF-8 text"):
        parse_command(["--config", str(tmp_path / "binary.yaml")], FLAGS)


def test_two_files_are_one_too_many(config_file) -> None:
    file = config_file("")
    with pytest.raises(ConfigError, match="given 2 times"):
        parse_command(["--config", file, "--config", file], FLAGS)


@pytest.mark.parametrize(("value", "is_on"), [("true", False), ("yes", False), ("false", True), ("off", True)])
def test_the_contrary_of_a_switch_may_be_denied_too(config_file, value: str, is_on: bool) -> None:
    file = config_file(f"no-enable-prefix-caching: {value}\n")
    assert engine_config(parse_command(["--config", file], FLAGS)).cache.enable_prefix_caching is is_on


def test_the_contrary_of_a_switch_is_a_switch(config_file) -> None:
    file = config_file("no-speculation: 5\n")
    with pytest.raises(ConfigError, match=r"serve.yaml: --no-speculation wants true or false, got '5'"):
        parse_command(["--config", file], FLAGS)
