"""Every flag of vLLM works, is said to have no effect, or is refused by name; every row leads somewhere."""

import dataclasses
from pathlib import Path

import pytest

from threefold.bench.commands import COMMANDS
from threefold.config import EngineConfig, ServerConfig
from threefold.errors import ConfigError
from threefold.flags.elsewhere import NOT_BUILT, REFUSALS, SAME_THING
from threefold.flags.flag import Flag
from threefold.flags.grammar import FlagSet, parse_words
from threefold.flags.speculation import KEYS
from threefold.flags.table import CONFIG_FLAG, ENGINE_FLAGS, GROUPS, SERVER_FLAGS
from threefold.quality.options import QUALITY_FLAGS
from threefold.quantize.options import QUANTIZE_FLAGS

ALL_FLAGS = SERVER_FLAGS + ENGINE_FLAGS
FLAG_SET = FlagSet((*ALL_FLAGS, CONFIG_FLAG))
VLLM_LINES = [
    line.split(" ", 1)
    for line in (Path(__file__).parent / "vllm_flags.txt").read_text().splitlines()
    if not line.startswith("#")
]


def config_fields() -> set[str]:
    fields = {f"server.{field.name}" for field in dataclasses.fields(ServerConfig)}
    for section in dataclasses.fields(EngineConfig):
        config = getattr(EngineConfig(), section.name)
        fields |= {f"{section.name}.{field.name}" for field in dataclasses.fields(config)}
    return fields


@pytest.mark.parametrize("words", VLLM_LINES, ids=lambda words: words[0])
def test_vllm_flag_works_or_is_refused_by_name(words: list[str]) -> None:
    try:
        parsed = parse_words(words, FLAG_SET)
    except ConfigError as error:
        message = str(error)
        assert "unknown flag" not in message
        flag = FLAG_SET.find(words[0])
        assert words[0].rstrip("0123456789") in message or (flag is not None and flag.name in message)
        assert "not built" in message
    else:
        flag = FLAG_SET.find(words[0])
        is_so_anyway = FLAG_SET.refusal(words[0]) is not None if flag is None else flag.no_effect == "silent"
        assert parsed.assignments or parsed.warnings or is_so_anyway
        assert not parsed.positionals


def test_the_list_is_long_enough_to_mean_something() -> None:
    assert len(VLLM_LINES) > 150


@pytest.mark.parametrize("flag", ALL_FLAGS, ids=lambda flag: flag.name)
def test_a_row_leads_to_a_field(flag) -> None:
    section, _, field = flag.field.partition(".")
    if not flag.field:
        assert flag.no_effect
    elif section == "speculation":
        assert field in (*KEYS, "", "is_on")
    else:
        assert flag.field in config_fields()
    assert flag.help
    assert flag.kind == "switch" or flag.metavar


def test_every_config_field_that_users_may_set_has_a_flag() -> None:
    set_by_flags = {flag.field for flag in ALL_FLAGS}
    missing = {field for field in config_fields() - set_by_flags if not field.startswith("speculation.")}
    assert missing == set()


def test_spellings_are_unique_and_apart_from_refusals() -> None:
    spellings = [spelling for flag in (*ALL_FLAGS, CONFIG_FLAG) for spelling in flag.spellings]
    assert len(set(spellings)) == len(spellings)
    assert not {spelling.lstrip("-") for spelling in spellings} & set(REFUSALS)


def test_hints_name_flags_that_work() -> None:
    for hint in SAME_THING.values():
        spelling = hint.split()[0]
        assert FLAG_SET.find(spelling) or FLAG_SET.find_negated(spelling), hint


def test_help_groups_hold_every_flag_once() -> None:
    shown = [flag.name for _, flags in GROUPS for flag in flags]
    assert sorted(shown) == sorted(flag.name for flag in (*ALL_FLAGS, CONFIG_FLAG))


def test_reasons_are_one_line() -> None:
    for name, refusal in REFUSALS.items():
        assert refusal.reason, name
        assert "\n" not in refusal.reason
    assert NOT_BUILT in REFUSALS["reasoning-parser"].reason


@pytest.mark.parametrize(
    "words",
    [
        ["--pipeline-parallel-size", "1"],
        ["-pp=1"],
        ["-dp", "1"],
        ["--no-enable-lora"],
        ["--no-trust-remote-code"],
        ["--tokenizer-mode", "auto"],
        ["--max-logprobs", "20"],
        ["--prefix-caching-hash-algo", "sha256"],
        ["--cpu-offload-gb", "0"],
    ],
)
def test_what_is_so_anyway_passes(words: list[str]) -> None:
    parsed = parse_words([*words, "MODEL"], FLAG_SET)
    assert parsed.positionals == ["MODEL"]
    assert not parsed.assignments


@pytest.mark.parametrize("words", [["--trust-remote-code", "MODEL"], ["--enable-lora", "MODEL"], ["--headless"]])
def test_refusal_does_not_swallow_what_follows(words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_words(words, FLAG_SET)
    assert "MODEL" not in str(caught.value)


def data_seeds() -> list[Flag]:
    groups = [group for command in COMMANDS.values() for _, group in command.groups]
    flags = [flag for group in (*groups, QUALITY_FLAGS, QUANTIZE_FLAGS) for flag in group]
    return list(
        {flag.field: flag for flag in flags if flag.name.endswith("seed") and flag.field != "model.seed"}.values()
    )


@pytest.mark.parametrize("flag", data_seeds(), ids=lambda flag: flag.field)
def test_no_source_of_chance_begins_below_zero(flag) -> None:
    assert flag.parse("7") == 7
    for bad in ("-1", "1e3", str(2**63)):
        with pytest.raises(ValueError, match="whole number"):
            flag.parse(bad)


def test_a_model_s_seed_fits_into_64_bits() -> None:
    (flag,) = (flag for flag in ALL_FLAGS if flag.name == "seed")
    assert flag.parse("-1") == -1
    with pytest.raises(ValueError, match="whole number between"):
        flag.parse(str(2**63))
