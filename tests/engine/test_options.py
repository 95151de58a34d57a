"""Options of `LLM(…)` reach the configs they name; what is no option is said with the nearest one that is."""

from __future__ import annotations

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
