"""The speculative-config block: every spelling that users bring, to one SpeculationConfig. Builds no drafter.

Understood: vLLM's keys; `draft_model` for `model` (a spelling found in articles, which vLLM itself refuses); several
methods in a list; `auto` and `none`; `adaptive`. What is known to vLLM and not built here is an error that says so;
what nobody knows is an error that names the nearest key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

from threefold.config import SpeculationConfig
from threefold.errors import ConfigError

T = TypeVar("T")

METHODS = ("ngram", "suffix", "draft_model")
_METHODS_ELSEWHERE = (
    "ngram_gpu", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark", "extract_hidden_states",
    "custom_class",
)  # fmt: skip
_METHOD_SPELLINGS = {"[ngram]": "ngram", "draft": "draft_model", "draft-model": "draft_model", "n-gram": "ngram"}
MAX_SPECULATIVE_TOKENS = 64

KEYS = (
    "method",
    "model",
    "draft_model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "adaptive",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
"""What the block may hold."""

# Keys of vLLM that are not built, with the values that change nothing.
_KEYS_ELSEWHERE: dict[str, tuple[object, ...]] = {
    "draft_tensor_parallel_size": (1,),
    "draft_sample_method": ("greedy",),
    "use_heterogeneous_vocab": (False,),
    "disable_padded_drafter_batch": (True, False),
    "parallel_drafting": (False,),
    "enforce_eager": (True, False),
    "num_speculative_tokens_per_batch_size": (),
    "tensor_parallel_size": (),
    **dict.fromkeys(
        (
            "quantization", "kv_cache_dtype", "attention_backend", "moe_backend", "max_model_len", "revision",
            "code_revision", "draft_load_config", "use_local_argmax_reduction", "disable_eagle_block_drop",
            "disable_lookahead_block_hashes", "draft_lm_head_quantization", "index_share_for_mtp_iteration",
            "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
            "suffix_decoding_min_token_prob", "fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k",
            "dspark_draft_topk", "xpress_topc", "enable_adaptive_verification", "disable_by_batch_size",
            "speculative_disable_by_batch_size", "speculative_token_tree",
        ),
        (),
    ),
}  # fmt: skip
_HINTS = {
    "num_speculative_tokens_per_batch_size": "the controller chooses by measured cost; leave it out",
    "speculative_disable_by_batch_size": "the controller turns drafts off where they do not pay; leave it out",
    "disable_by_batch_size": "the controller turns drafts off where they do not pay; leave it out",
    "tensor_parallel_size": "the draft model runs as the target does; leave it out",
}


def parse_speculation(block: Mapping[str, object]) -> SpeculationConfig:
    """Read a speculative-config block; an empty one gives the default.

    Raises:
        ConfigError: naming the key, what was given and what would work.
    """
    given = _known_keys(block)
    if given.pop("is_on", True) is False:
        return SpeculationConfig(methods=())
    draft_model = _draft_model(given)
    methods = _methods(given, draft_model)
    if not methods:
        return SpeculationConfig(methods=())
    default = SpeculationConfig()
    rates = _synthetic_rates(given)
    num_tokens = _integer(given, "num_speculative_tokens", 0)
    num_tokens = num_tokens if num_tokens is not None else (len(rates) or default.num_speculative_tokens)
    if num_tokens == 0:
        return SpeculationConfig(methods=())
    lookup_min, lookup_max = _lookup(given, default)
    return SpeculationConfig(
        methods=methods,
        num_speculative_tokens=num_tokens,
        is_adaptive=_typed(given, "adaptive", bool, "true or false", default.is_adaptive),
        prompt_lookup_min=lookup_min,
        prompt_lookup_max=lookup_max,
        draft_model=draft_model,
        rejection_sample_method="synthetic" if rates else "standard",
        synthetic_acceptance_rates=rates,
    )


def minimum_variance_rates(length: float, num_tokens: int) -> tuple[float, ...]:
    """Acceptance rates whose mean accepted length is `length`, bonus token included, with the least spread.

    Whole positions are always accepted, the next one with the fraction that is left, the rest never: the number of
    tokens a step then differs by at most one.
    """
    rest = length - 1.0
    return tuple(min(max(rest - position, 0.0), 1.0) for position in range(num_tokens))


def _error(key: str, message: str) -> ConfigError:
    return ConfigError(f"speculative-config: {key} {message}")


def _known_keys(block: Mapping[str, object]) -> dict[str, object]:
    """The block with plain keys, nulls dropped."""
    given: dict[str, object] = {}
    for raw, value in block.items():
        key = str(raw).replace("-", "_")
        if value is None:
            continue
        if key in KEYS or key == "is_on":
            given[key] = value
        elif key in _KEYS_ELSEWHERE:
            if value not in _KEYS_ELSEWHERE[key]:
                hint = _HINTS.get(key, "known to vLLM, not built in Threefold yet")
                raise _error(f"'{key}'", f"cannot be set: {hint}")
        else:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise _error(f"'{key}'", f"is unknown; {hint}known: {', '.join(KEYS)}")
    return given


def _draft_model(given: dict[str, object]) -> str | None:
    names = [_typed(given, key, str, "a folder, GGUF file or hub id", "") for key in ("draft_model", "model")]
    if all(names) and names[0] != names[1]:
        raise ConfigError(
            f"speculative-config: draft_model '{names[0]}' and model '{names[1]}' are two names for one thing; give one"
        )
    return names[0] or names[1] or None


def _methods(given: dict[str, object], draft_model: str | None) -> tuple[str, ...]:
    """The drafters asked for; empty = none."""
    asked = given.get("method")
    if asked is None:
        if draft_model is None:
            return SpeculationConfig().methods
        if draft_model in ("ngram", "[ngram]"):  # vLLM 0.6: --speculative-model [ngram]
            return ("ngram",)
        return ("draft_model",)
    names = [str(name) for name in asked] if isinstance(asked, list) else str(asked).split(",")
    names = [_METHOD_SPELLINGS.get(name.strip(), name.strip()) for name in names]
    if names in (["none"], ["off"], ["False"]):
        return ()
    if names == ["auto"]:
        return SpeculationConfig().methods + (("draft_model",) if draft_model else ())
    for name in names:
        _check_method(name)
    if "draft_model" in names and draft_model is None:
        raise _error("method 'draft_model'", 'needs the model: "draft_model": "folder, GGUF file or hub id"')
    if draft_model is not None and "draft_model" not in names:
        raise _error(f"method '{','.join(names)}'", f"uses no draft model, yet one is given: {draft_model}")
    return tuple(dict.fromkeys(names))


def _check_method(name: str) -> None:
    if name in METHODS:
        return
    if name in _METHODS_ELSEWHERE:
        raise _error(
            f"method '{name}'", f"is known to vLLM, not built in Threefold yet; what works: {', '.join(METHODS)}"
        )
    near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise _error(f"method '{name}'", f"is unknown; {hint}what works: {', '.join(METHODS)}, auto, none")


def _lookup(given: dict[str, object], default: SpeculationConfig) -> tuple[int, int]:
    shortest, longest = _integer(given, "prompt_lookup_min", 1), _integer(given, "prompt_lookup_max", 1)
    if shortest is None:
        shortest = min(default.prompt_lookup_min, longest or default.prompt_lookup_min)
    if longest is None:
        longest = max(default.prompt_lookup_max, shortest)
    if shortest > longest:
        raise _error("prompt_lookup_min", f"({shortest}) must not exceed prompt_lookup_max ({longest})")
    return shortest, longest


def _synthetic_rates(given: dict[str, object]) -> tuple[float, ...]:
    """Acceptance by decree, () when acceptance is real."""
    method = str(given.get("rejection_sample_method", "standard"))
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    if method != "synthetic":
        if method != "standard":
            raise _error(f"rejection_sample_method '{method}'", "is not built; what works: standard, synthetic")
        if rates is not None or length is not None:
            raise _error("synthetic_acceptance_*", 'needs "rejection_sample_method": "synthetic"')
        return ()
    if (rates is None) == (length is None):
        raise _error("synthetic", "wants either synthetic_acceptance_rates or synthetic_acceptance_length")
    num_tokens = _integer(given, "num_speculative_tokens", 1)
    if rates is not None:
        return _checked_rates(rates, num_tokens)
    num_tokens = num_tokens or SpeculationConfig().num_speculative_tokens
    if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length <= num_tokens + 1:
        raise _error("synthetic_acceptance_length", f"must be between 1 and {num_tokens + 1}, got {length}")
    return minimum_variance_rates(float(length), num_tokens)


def _checked_rates(rates: object, num_tokens: int | None) -> tuple[float, ...]:
    if (
        not isinstance(rates, list)
        or not rates
        or any(isinstance(r, bool) or not isinstance(r, int | float) for r in rates)
    ):
        raise _error("synthetic_acceptance_rates", f"wants a list of numbers such as [0.8, 0.6], got {rates}")
    values = tuple(float(rate) for rate in rates)
    if not all(0 <= rate <= 1 for rate in values) or any(b > a for a, b in pairwise(values)):
        raise _error("synthetic_acceptance_rates", f"must lie in [0, 1] and not increase, got {rates}")
    if num_tokens is not None and num_tokens != len(values):
        raise _error("synthetic_acceptance_rates", f"has {len(values)} rates for {num_tokens} speculative tokens")
    return values


def _integer(given: dict[str, object], key: str, low: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_SPECULATIVE_TOKENS:
        raise _error(key, f"must be a whole number between {low} and {MAX_SPECULATIVE_TOKENS}, got {value}")
    return value


def _typed(given: dict[str, object], key: str, kind: type[T], wanted: str, default: T) -> T:
    value = given.get(key, default)
    if not isinstance(value, kind):
        raise _error(key, f"wants {wanted}, got {value}")
    return value
