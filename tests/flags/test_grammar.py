import pytest

from threefold.errors import ConfigError
from threefold.flags.flag import Flag
from threefold.flags.grammar import FlagSet, parse_words
from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS
from threefold.flags.values import integer, one, switch, text

FLAGS = FlagSet(
    (
        Flag("max-num-seqs", "s.seqs", integer(1), "rows", aliases=("-m",)),
        Flag("seed", "s.seed", integer(), "seed"),
        Flag("cache", "s.cache", switch, "cache", kind="switch"),
        Flag("names", "s.names", one, "names", kind="list"),
        Flag("block", "s.block", text, "block", kind="json", aliases=("-b",)),
        Flag("old", "", switch, "old", kind="switch", no_effect="long gone"),
        Flag("always", "", switch, "always", kind="switch", no_effect="silent"),
    )
)
REAL = FlagSet(SERVER_FLAGS + ENGINE_FLAGS)


def values(*words: str) -> dict[str, object]:
    return {assignment.flag.name: assignment.value for assignment in parse_words(words, FLAGS).assignments}


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "4"],
        ["--max_num_seqs", "4"],
        ["--max-num-seqs=4"],
        ["--max_num_seqs=4"],
        ["-m", "4"],
        ["-m=4"],
    ],
)
def test_spellings_of_one_value(words: list[str]) -> None:
    assert values(*words) == {"max-num-seqs": 4}


def test_negative_numbers_are_values() -> None:
    assert values("--seed", "-5") == {"seed": -5}


def test_switches() -> None:
    assert values("--cache") == {"cache": True}
    assert values("--no-cache") == {"cache": False}
    assert values("--no_cache") == {"cache": False}
    assert values("--cache=false") == {"cache": False}
    assert values("--cache", "--no-cache") == {"cache": False}


def test_lists_end_at_the_next_flag() -> None:
    assert values("--names", "a", "b", "--seed", "1") == {"names": ("a", "b"), "seed": 1}


def test_list_with_equals_takes_one() -> None:
    parsed = parse_words(["--names=a", "b"], FLAGS)
    assert parsed.assignments[0].value == ("a",)
    assert parsed.positionals == ["b"]


def test_positionals_and_the_double_dash() -> None:
    assert parse_words(["a", "--seed", "1", "b", "--", "--cache"], FLAGS).positionals == ["a", "b", "--cache"]


def test_a_single_dash_is_a_word() -> None:
    assert parse_words(["-"], FLAGS).positionals == ["-"]


def test_json_whole_and_by_key() -> None:
    assert values("--block", '{"a": 1, "b": [0.5]}') == {"block": {"a": 1, "b": [0.5]}}
    assert values("--block.a-b", "x,y") == {"block": {"a-b": "x,y"}}
    assert values("--block.rates=[0.8,0.5]") == {"block": {"rates": [0.8, 0.5]}}


def test_json_whose_braces_the_shell_expanded() -> None:
    parsed = parse_words(["-b", "method:ngram", "num_speculative_tokens:5", "--seed", "1"], FLAGS)
    assert parsed.assignments[0].value == {"method": "ngram", "num_speculative_tokens": 5}
    assert not parsed.positionals


def test_what_has_no_effect_warns_once_and_says_why() -> None:
    parsed = parse_words(["--old", "--always"], FLAGS)
    assert parsed.warnings == ["--old has no effect here: long gone"]
    assert not parsed.assignments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-num-seqs"], "--max-num-seqs wants a value"),
        (["--max-num-seqs", "--cache"], "--max-num-seqs wants a value"),
        (["--max-num-seqs", "many"], "'many'"),
        (["--max-num-seqs", "0"], "at least 1"),
        (["--cache=perhaps"], "true or false"),
        (["--max-num-seq", "1"], "nearest: --max-num-seqs"),
        (["--zzz"], "unknown flag --zzz"),
        (["--block", "nonsense"], "one JSON object"),
        (["--seed.key", "1"], "has no keys"),
        (["--no-seed"], "unknown flag --no-seed"),
        (["-x"], "unknown flag -x"),
    ],
)
def test_mistakes_are_one_line_with_a_way_out(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_words(words, FLAGS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("--mem-fraction-static", "--gpu-memory-utilization"),
        ("--max-running-requests", "--max-num-seqs"),
        ("--disable-radix-cache", "--no-enable-prefix-caching"),
        ("--ctx-size", "--max-model-len"),
    ],
)
def test_names_of_other_engines_are_translated(word: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=f"here it is called {ours}"):
        parse_words([word, "1"], REAL)


def test_help_words() -> None:
    assert parse_words(["--help"], FLAGS).help_word == ""
    assert parse_words(["-h"], FLAGS).help_word == ""
    assert parse_words(["--help=cache"], FLAGS).help_word == "cache"


def test_chunked_prefill_cannot_be_turned_off() -> None:
    assert not parse_words(["--enable-chunked-prefill"], REAL).warnings
    with pytest.raises(ConfigError, match="cannot be turned off"):
        parse_words(["--no-enable-chunked-prefill"], REAL)
