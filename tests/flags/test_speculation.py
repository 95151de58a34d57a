import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.config import SpeculationConfig
from threefold.errors import ConfigError
from threefold.flags.speculation import minimum_variance_rates, parse_speculation

OFF = SpeculationConfig(methods=())


def test_nothing_said_is_the_default() -> None:
    assert parse_speculation({}) == SpeculationConfig()


def test_ngram_as_vllm_users_write_it() -> None:
    parsed = parse_speculation(
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    )
    assert parsed.methods == ("ngram",)
    assert (parsed.num_speculative_tokens, parsed.prompt_lookup_min, parsed.prompt_lookup_max) == (5, 2, 4)
    assert parsed.is_adaptive


@pytest.mark.parametrize(
    "block",
    [
        {"method": "draft_model", "draft_model": "org/small", "num_speculative_tokens": 5},
        {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 5},
        {"model": "org/small", "num_speculative_tokens": 5},
        {"method": "draft_model", "model": "org/small", "draft_model": "org/small", "num_speculative_tokens": 5},
        {"method": "draft-model", "model": "org/small", "num-speculative-tokens": "5"},
    ],
)
def test_spellings_of_a_draft_model(block: dict[str, object]) -> None:
    parsed = parse_speculation(block)
    assert parsed == SpeculationConfig(methods=("draft_model",), draft_model="org/small", num_speculative_tokens=5)


@pytest.mark.parametrize(
    "block",
    [
        {"method": "none"},
        {"method": "off"},
        {"is_on": False, "method": "ngram"},
        {"num_speculative_tokens": 0},
        {"method": "none", "num_speculative_tokens": 5},
    ],
)
def test_off(block: dict[str, object]) -> None:
    assert parse_speculation(block) == OFF
    assert not parse_speculation(block).is_enabled


def test_several_methods_and_auto() -> None:
    assert parse_speculation({"method": ["ngram", "draft_model"], "model": "m"}).methods == ("ngram", "draft_model")
    assert parse_speculation({"method": "ngram,suffix"}).methods == ("ngram", "suffix")
    assert parse_speculation({"method": "ngram,ngram"}).methods == ("ngram",)
    assert parse_speculation({"method": "auto"}).methods == SpeculationConfig().methods
    assert parse_speculation({"method": "auto", "model": "m"}).methods == ("ngram", "draft_model")
    assert parse_speculation({"method": "suffix"}).methods == ("suffix",)


def test_old_spelling_of_ngram() -> None:
    parsed = parse_speculation({"model": "[ngram]", "num_speculative_tokens": 4})
    assert parsed.methods == ("ngram",)


def test_adaptive_can_be_turned_off() -> None:
    assert not parse_speculation({"adaptive": False}).is_adaptive


def test_one_lookup_bound_alone() -> None:
    assert parse_speculation({"prompt_lookup_max": 1}).prompt_lookup_min == 1
    assert parse_speculation({"prompt_lookup_max": 4}).prompt_lookup_min == SpeculationConfig().prompt_lookup_min
    assert parse_speculation({"prompt_lookup_min": 12}).prompt_lookup_max == 12


def test_synthetic_rates() -> None:
    parsed = parse_speculation(
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.5, 0.5], "method": "ngram"}
    )
    assert parsed.rejection_sample_method == "synthetic"
    assert parsed.synthetic_acceptance_rates == (0.9, 0.5, 0.5)
    assert parsed.num_speculative_tokens == 3


def test_synthetic_length_becomes_rates_of_least_variance() -> None:
    parsed = parse_speculation(
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.25, "num_speculative_tokens": 4}
    )
    assert parsed.synthetic_acceptance_rates == (1.0, 1.0, 0.25, 0.0)


@given(st.integers(1, 16), st.floats(0, 1))
def test_rates_add_up_to_the_length(num_tokens: int, share: float) -> None:
    length = 1 + share * num_tokens
    rates = minimum_variance_rates(length, num_tokens)
    assert 1 + sum(rates) == pytest.approx(length)
    assert list(rates) == sorted(rates, reverse=True)
    assert sum(0 < rate < 1 for rate in rates) <= 1


def test_nulls_and_what_is_so_anyway_pass() -> None:
    block = {"method": "ngram", "model": None, "draft_tensor_parallel_size": 1, "disable_padded_drafter_batch": True}
    assert parse_speculation(block) == SpeculationConfig(methods=("ngram",))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"methods": "ngram"}, "did you mean 'method'"),
        ({"num_spec_tokens": 5}, "did you mean 'num_speculative_tokens'"),
        ({"zzz": 5}, "known: method, model"),
        ({"method": "ngrm"}, "did you mean 'ngram'"),
        ({"method": "eagle3"}, "known to vLLM, not built"),
        ({"method": "ngram_gpu"}, "known to vLLM, not built"),
        ({"method": "zzz"}, "what works: ngram, suffix, draft_model, auto, none"),
        ({"method": "none,ngram"}, "method 'none'"),
        ({"method": "draft_model"}, "needs the model"),
        ({"method": "ngram", "model": "m"}, "uses no draft model"),
        ({"draft_model": "a", "model": "b"}, "two names for one thing"),
        ({"model": 5}, "wants a folder, GGUF file or hub id"),
        ({"num_speculative_tokens": -1}, "between 0 and 64"),
        ({"num_speculative_tokens": 65}, "between 0 and 64"),
        ({"num_speculative_tokens": 2.5}, "whole number"),
        ({"num_speculative_tokens": True}, "whole number"),
        ({"num_speculative_tokens": "five"}, "whole number"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "must not exceed"),
        ({"prompt_lookup_min": 0}, "between 1 and 64"),
        ({"adaptive": "no"}, "true or false"),
        ({"quantization": "fp8"}, "'quantization' cannot be set: known to vLLM"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 5]]}, "the controller chooses"),
        ({"tensor_parallel_size": 2}, "runs as the target does"),
        ({"rejection_sample_method": "block"}, "what works: standard, synthetic"),
        ({"rejection_sample_method": "synthetic"}, "either synthetic_acceptance_rates or"),
        ({"synthetic_acceptance_length": 2}, 'needs "rejection_sample_method": "synthetic"'),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 9, "num_speculative_tokens": 4},
            "between 1 and 5",
        ),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.9]}, "not increase"),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.5]}, "lie in [0, 1]"),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": []}, "list of numbers"),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": 0.5}, "list of numbers"),
        (
            {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.5],
                "num_speculative_tokens": 4,
            },
            "1 rates for 4",
        ),
    ],
)
def test_mistakes_name_the_key_and_the_way_out(block: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_speculation(block)
    assert said in str(caught.value)
    assert str(caught.value).startswith("speculative-config: ")
    assert "\n" not in str(caught.value)


KEYS = st.sampled_from(["method", "model", "num_speculative_tokens", "prompt_lookup_max", "adaptive", "quantization"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(KEYS, JUNK, max_size=4))
def test_junk_is_a_config_or_a_config_error(block: dict[str, object]) -> None:
    try:
        assert isinstance(parse_speculation(block), SpeculationConfig)
    except ConfigError as error:
        assert "speculative-config" in str(error)
