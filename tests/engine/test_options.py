"""Options of `LLM(…)` reach the configs they name; what is no option is said with the nearest one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from threefold.config import EngineConfig
from threefold.engine.options import config_from_options
from threefold.errors import ConfigError


def test_options_go_to_the_config_that_has_the_field() -> None:
    config = config_from_options("folder", {"max_model_len": 512, "max_num_seqs": 3, "num_blocks": 7, "device": "cpu"})

    assert ("folder", 512) == (config.model.model, config.model.max_model_len)
    assert 3 == config.scheduler.max_num_seqs
    assert 7 == config.cache.num_blocks
    assert "cpu" == config.device.device


def test_no_option_is_the_default() -> None:
    assert EngineConfig() == config_from_options(None, {})


def test_speculative_config_is_vllms_block() -> None:
    config = config_from_options(None, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}})

    assert (("ngram",), 5) == (config.speculation.methods, config.speculation.num_speculative_tokens)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        config_from_options(None, {"max_num_seq": 3})


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("max_num_seqs", "many", "option max_num_seqs wants a whole number"),
        ("max_num_seqs", 8.5, "option max_num_seqs wants a whole number, and '8.5' is 8.5"),
        ("max_num_seqs", True, "option max_num_seqs wants a whole number"),
        ("max_num_seqs", 0, "option max_num_seqs wants a whole number of at least 1, got 0"),
        ("block_size", 0, "option block_size wants a whole number between 1 and 1024, got 0"),
        ("block_size", None, "option block_size wants a whole number"),
        ("gpu_memory_utilization", 5, "option gpu_memory_utilization wants a number above 0 and at most 1, got 5"),
        ("enable_prefix_caching", "perhaps", "option enable_prefix_caching wants true or false, got 'perhaps'"),
        ("dtype", "x", "option dtype wants one of auto"),
        ("policy", "lifo", "option policy wants one of fcfs, priority; got 'lifo'"),
        ("seed", 10**30, "option seed wants a whole number between"),
        ("served_model_names", 5, "option served_model_names 'int' object is not iterable"),
        ("speculative_config", "ngram", "speculative_config wants a dict such as"),
    ],
)
def test_a_value_that_cannot_hold_is_said_before_anything_is_loaded(option: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_options(None, {option: value})
    assert str(caught.value).startswith(says)


def test_values_are_read_as_flags_read_them() -> None:
    options = {
        "max_model_len": "32k",
        "quantization": None,
        "dtype": "half",
        "enable_prefix_caching": False,
        "served_model_names": ["a", "b"],
        "gpu_memory_utilization": 1,
    }
    config = config_from_options(Path("folder"), options)  # type: ignore[arg-type]
    assert (config.model.model, config.model.max_model_len, config.model.dtype) == ("folder", 32_000, "float16")
    assert (config.model.quantization, config.cache.enable_prefix_caching) == (None, False)
    assert config.model.served_model_names == ("a", "b")
    assert config.cache.gpu_memory_utilization == 1.0
    assert config_from_options(None, {"served_model_names": "abc"}).model.served_model_names == ("abc",)
