import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.bench.load_options import LoadOptions
from threefold.bench.prompt import Prompt
from threefold.bench.workload import GROUPS, load_workload, make_workload, pick
from threefold.errors import ConfigError


@pytest.fixture
def dataset(tmp_path: Path):
    path = tmp_path / "prompts.jsonl"

    def write(*lines: object) -> Path:
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def bench_line(number: int, category: str) -> dict:
    return {"question_id": number, "category": category, "turns": [f"{category} {number}", "and then?"]}


def test_first_turns_and_plain_prompts(dataset) -> None:
    path = dataset(bench_line(1, "qa"), "", {"prompt": "plain", "output_tokens": 9}, "   ")
    workload = load_workload(path)
    assert set(workload.prompts) == {Prompt("qa 1", "qa"), Prompt("plain", "", 9)}
    assert (workload.num_distinct, workload.dataset, workload.group) == (2, "prompts.jsonl", "all")
    assert workload.dataset_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_groups_categories_and_lists_of_them(dataset) -> None:
    path = dataset(
        *(bench_line(index, category) for index, category in enumerate(["qa", "rag", "coding", "translation"]))
    )

    def categories(group: str) -> set[str]:
        return {prompt.category for prompt in load_workload(path, group=group).prompts}

    assert categories("all") == {"qa", "rag", "coding", "translation"}
    assert categories("extract") == {"rag", "coding"}
    assert categories("short") == {"qa", "coding"}
    assert categories("translation") == {"translation"}
    assert categories("prose,rag") == {"qa", "rag"}


def test_groups_are_those_of_the_targets() -> None:
    assert GROUPS["extract"] == ("coding", "extraction", "summarization", "rag")
    assert GROUPS["prose"] == ("writing", "roleplay", "humanities", "stem", "qa")
    assert len(GROUPS["short"]) == 10


def test_repeated_when_too_few(dataset) -> None:
    workload = load_workload(dataset({"prompt": "a"}, {"prompt": "b"}), num_prompts=5)
    assert len(workload.prompts) == 5
    assert workload.num_distinct == 2
    assert Counter(prompt.text for prompt in workload.prompts).most_common(1)[0][1] == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "line 2: is no JSON"),
        ("[1]", "line 2: wants an object with 'turns' or 'prompt', got a list"),
        ("5", "got a int"),
        ("{}", "line 2: wants 'turns'"),
        ('{"prompt": ""}', "line 2: wants 'prompt'"),
        ('{"prompt": 5}', "line 2: wants 'prompt'"),
        ('{"turns": []}', "line 2: wants 'turns'"),
        ('{"turns": [3]}', "line 2: wants 'turns'"),
        ('{"prompt": "x", "output_tokens": 0}', "output_tokens must be a whole number"),
        ('{"prompt": "x", "output_tokens": true}', "output_tokens must be a whole number"),
        ("[" * 100_000, "line 2: is nested too deeply"),
    ],
)
def test_a_bad_line_is_one_error_with_its_number(dataset, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload(dataset({"prompt": "fine"}, line))
    assert said in str(caught.value)
    assert "prompts.jsonl" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        load_workload(tmp_path / "missing")
    with pytest.raises(ConfigError, match="cannot read it"):
        load_workload(tmp_path)
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        load_workload(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b'{"prompt": "\xff\xfe"}')
    with pytest.raises(ConfigError, match="binary, line 1: is no"):
        load_workload(tmp_path / "binary")


@pytest.mark.parametrize(
    ("lines", "group", "said"),
    [
        ([{"prompt": "x"}], "extract", "has no prompt of it"),
        ([{"prompt": "x"}], "qa", "has no categories; groups: all, extract, prose, mixed, short"),
        ([bench_line(1, "qa")], "qua", "categories qa; groups"),
        ([bench_line(1, "qa")], "extract", "has no prompt of it"),
    ],
)
def test_groups_that_are_not_there(dataset, lines: list, group: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload(dataset(*lines), group=group)
    assert said in str(caught.value)


PILES = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 6), min_size=1)


@given(PILES, st.integers(1, 40), st.integers(0, 5))
def test_picks_are_reproducible_balanced_and_share_their_beginning(
    piles: dict[str, int], count: int, seed: int
) -> None:
    prompts = [Prompt(f"{name}{index}", name) for name, size in piles.items() for index in range(size)]
    picked = pick(prompts, count, seed)
    assert picked == pick(list(prompts), count, seed)
    assert picked == pick(prompts, count + 7, seed)[:count]
    assert len(picked) == count
    first_round = picked[: len(prompts)]
    assert len(set(first_round)) == len(first_round)
    counts = Counter(prompt.category for prompt in picked[: min(piles.values()) * len(piles)])
    assert max(counts.values()) - min(counts.get(name, 0) for name in piles) <= 1


def test_seeds_differ() -> None:
    prompts = [Prompt(str(index)) for index in range(50)]
    assert pick(prompts, 50, 0) != pick(prompts, 50, 1)


def test_gzipped_and_whole_json_lists(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(
        gzip.compress(b'{"task_id": "a/0", "prompt": "def f():"}\n{"task_id": "a/1", "prompt": "def g():"}\n')
    )
    assert {prompt.text for prompt in load_workload(path, form="humaneval").prompts} == {"def f():", "def g():"}
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ConfigError, match="gzipped and damaged"):
        load_workload(path)
    listed = tmp_path / "share.json"
    asked = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "x" * 40}]}
    listed.write_text(json.dumps([asked, {"conversations": []}]))
    workload = load_workload(listed, form="sharegpt")
    assert (workload.prompts, workload.num_skipped) == ((Prompt("hi", max_tokens=10),), 1)
    listed.write_text(json.dumps([asked, {"conversations": 3}]))
    with pytest.raises(ConfigError, match=r"share\.json, entry 2: wants 'conversations'"):
        load_workload(listed, form="sharegpt")


def trace_line(at: float, *hashes: int) -> dict:
    return {"timestamp": at, "input_length": 512 * len(hashes), "output_length": 7, "hash_ids": list(hashes)}


def test_a_trace_keeps_its_order_and_starts_at_zero(dataset) -> None:
    path = dataset(trace_line(1500, 3), trace_line(1000, 1, 2), trace_line(4000, 4))
    workload = load_workload(path)
    assert workload.is_trace
    assert [prompt.at_s for prompt in workload.prompts] == [0.0, 0.5, 3.0]
    assert [prompt.max_tokens for prompt in workload.prompts] == [7, 7, 7]
    assert "say nothing of drafts" in workload.remarks[0]
    assert len(load_workload(path, num_prompts=2).prompts) == 2
    with pytest.raises(ConfigError, match=r"--num-prompts 4: prompts\.jsonl holds 3"):
        load_workload(path, num_prompts=4)


def test_half_a_trace(dataset) -> None:
    with pytest.raises(ConfigError, match="1 of 2 entries have a timestamp"):
        load_workload(dataset(trace_line(0, 1), {"prompt": "x"}))


def test_one_length_for_all(dataset) -> None:
    path = dataset({"prompt": "a", "output_tokens": 3}, {"prompt": "b"})
    assert {prompt.max_tokens for prompt in make_workload(LoadOptions(dataset=str(path))).prompts} == {3, None}
    assert {prompt.max_tokens for prompt in make_workload(LoadOptions(dataset=str(path), output_len=9)).prompts} == {9}


def test_random_prompts() -> None:
    asked = LoadOptions(
        dataset_name="random", num_prompts=50, random_input_len=100, random_prefix_len=10, random_range_ratio=0.5,
        output_len=20,
    )  # fmt: skip
    workload = make_workload(asked)
    assert workload == make_workload(asked)
    texts = [prompt.made_up.text().split() for prompt in workload.prompts]
    assert len({tuple(words[:10]) for words in texts}) == 1
    assert len({tuple(words[10:20]) for words in texts}) == 50
    lengths = [len(words) - 10 for words in texts]
    assert 50 <= min(lengths) < 80 < 120 < max(lengths) <= 150
    assert all(10 <= prompt.max_tokens <= 30 for prompt in workload.prompts)
    assert "say nothing of speculation" in workload.remarks[0]


def test_no_dataset() -> None:
    with pytest.raises(ConfigError, match="--dataset FILE is needed"):
        make_workload(LoadOptions())
