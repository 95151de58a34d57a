"""The whole table on an engine without a model: what runs, in which order, and what is made of it."""

from __future__ import annotations

import gc
import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from threefold.bench import envelope
from threefold.bench.envelope import bench_envelope
from threefold.bench.envelope_options import EnvelopeOptions
from threefold.cache.manager import CacheManager
from threefold.config import EngineConfig, SpeculationConfig
from threefold.cost import CostCurve
from threefold.draft.controller import Controller, DraftPolicy, FixedDrafts, NoDrafts
from threefold.engine.core import EngineCore
from threefold.engine.outputs import EngineInfo
from threefold.errors import ConfigError
from threefold.schedule.scheduler import Scheduler
from threefold.testing.byte_tokenizer import ByteTokenizer
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor
from threefold.testing.fake_model import FakeModel

TOKENIZER = ByteTokenizer()


@dataclass
class FakeLoaded:
    """Stands where engine.loaded.LoadedEngine does."""

    made: list[tuple[SpeculationConfig, DraftPolicy]] = field(default_factory=list)
    fault_at: int = -1
    card: object | None = None
    model: FakeModel = field(default_factory=FakeModel)

    def policy(self, speculation: SpeculationConfig) -> tuple[DraftPolicy, str]:
        if not speculation.is_enabled:
            return NoDrafts(), ""
        if not speculation.is_adaptive:
            return FixedDrafts(speculation.num_speculative_tokens), ""
        return Controller(CostCurve.uninformed(), speculation.num_speculative_tokens), ""

    def core(self, speculation: SpeculationConfig, policy: DraftPolicy) -> EngineCore:
        if len(self.made) == self.fault_at:
            raise KeyboardInterrupt
        self.made.append((speculation, policy))
        drafts = FakeDrafts(0.7) if speculation.is_enabled else None
        scheduler = Scheduler(CacheManager(512, 16, True), policy, max_num_seqs=8, max_num_batched_tokens=256)
        executor = FakeExecutor(self.model, drafts=drafts, step_s=0.0002)
        return EngineCore(scheduler, executor, vocab_size=TOKENIZER.vocab_size)

    def info(self) -> EngineInfo:
        return EngineInfo("fake", 2048, TOKENIZER.vocab_size, ("fake",), frozenset({0}), 512, 16, 8)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> FakeLoaded:
    fake = FakeLoaded()
    monkeypatch.setattr(envelope, "load_engine", lambda config: fake)
    monkeypatch.setattr(envelope, "make_tokenizer", lambda info: TOKENIZER)
    return fake


@pytest.fixture
def asked(tmp_path: Path) -> EnvelopeOptions:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"say {index}", "category": "qa" if index % 2 else "rag"} for index in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return EnvelopeOptions(
        dataset=str(path), groups=("extract", "qa+rag"), concurrency=(1, 2), methods=("ngram",), fixed=(2, 4),
        rounds=1, max_tokens=12,
    )  # fmt: skip


NAMES = ["off", "gated", "fixed 2", "fixed 4", "adaptive"]


def test_the_table(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    said: list[str] = []
    result = bench_envelope(asked, EngineConfig(), said.append)
    assert [(cell["group"], cell["concurrency"]) for cell in result["cells"]] == [
        ("extract", 1), ("extract", 2), ("qa,rag", 1), ("qa,rag", 2),
    ]  # fmt: skip
    assert len(said) == 4
    assert said[-1].startswith("[4/4] qa,rag × 2, ngram, 4 requests: ")
    for cell in result["cells"]:
        assert list(cell["variants"]) == NAMES
        assert cell["has_equal_tokens"]
        assert cell["num_failed"] == 0
        assert cell["best"] in ("off", "fixed 2", "fixed 4")
        tokens = cell["num_requests"] * asked.max_tokens
        assert all(variant["output_tokens"] == [tokens] for variant in cell["variants"].values())
        assert all(variant["num_different"] == [0] for variant in cell["variants"].values())
    drafted = {name: variant["num_draft_tokens"] for name, variant in result["cells"][0]["variants"].items()}
    assert drafted["off"] == drafted["gated"] == 0
    assert 0 < drafted["fixed 2"] < drafted["fixed 4"]
    json.dumps(result)


def test_no_run_is_held_up_by_a_collection_of_all_that_stands(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    gc.unfreeze()
    try:
        bench_envelope(asked, EngineConfig(), lambda line: None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_answers_end_where_they_end_by_themselves(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    loaded.model = FakeModel(end_token_id=0, ends_one_in=30)
    free = bench_envelope(replace(asked, max_tokens=200), EngineConfig(), lambda line: None)
    forced = bench_envelope(replace(asked, max_tokens=200, ignore_eos=True), EngineConfig(), lambda line: None)

    for short, long in zip(free["cells"], forced["cells"], strict=True):
        tokens = {tuple(variant["output_tokens"]) for variant in short["variants"].values()}
        assert len(tokens) == 1  # the same work for every variant
        assert tokens.pop()[0] < long["num_requests"] * 200 == long["variants"]["off"]["output_tokens"][0]


def test_what_runs_is_what_a_user_would_configure(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    one = replace(asked, groups=("extract",), concurrency=(1,), rounds=2, methods=("ngram", "suffix"))
    bench_envelope(one, EngineConfig(), lambda line: None)
    kinds = [
        (spec.methods, spec.num_speculative_tokens if spec.methods else 0, type(policy)) for spec, policy in loaded.made
    ]
    there = [
        ((), 0, NoDrafts),
        (("ngram",), 8, NoDrafts),
        (("ngram",), 2, FixedDrafts),
        (("ngram",), 4, FixedDrafts),
        (("ngram",), 8, Controller),
    ]
    other = [(("suffix",) if methods else (), *rest) for methods, *rest in there]
    turn = [*there, *other[1:]]  # drafts off once for both drafters
    assert kinds == [*turn, there[0], *turn, *turn[::-1]]  # warm-up, natural ends, then rounds to and fro
    controllers = {id(policy) for _, policy in loaded.made if isinstance(policy, Controller)}
    assert len(controllers) == 2  # one a drafter, through all of its runs


def test_cpu_time_is_that_of_the_engines_thread(
    loaded: FakeLoaded, asked: EnvelopeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(envelope.time, "thread_time", lambda: float(next(seconds)))
    one = replace(asked, groups=("extract",), concurrency=(2,), cpu_time=True)
    cell = bench_envelope(one, EngineConfig(), lambda line: None)["cells"][0]
    tokens = cell["num_requests"] * asked.max_tokens
    assert [variant["median"] for variant in cell["variants"].values()] == [tokens] * len(NAMES)


def test_a_card_does_not_work_in_the_engines_thread(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    loaded.card = object()
    with pytest.raises(ConfigError, match="--cpu-time"):
        bench_envelope(replace(asked, cpu_time=True), EngineConfig(), lambda line: None)


def test_a_budget_chooses_the_number_of_requests(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    one = replace(asked, groups=("extract",), concurrency=(2,))
    in_haste = bench_envelope(replace(one, budget_s=1e-6), EngineConfig(), lambda line: None)
    assert in_haste["cells"][0]["num_requests"] == 2
    at_leisure = bench_envelope(replace(one, budget_s=1e6, requests_per_row=5), EngineConfig(), lambda line: None)
    assert at_leisure["cells"][0]["num_requests"] == 10


def test_ctrl_c_keeps_the_cells_that_are_complete(loaded: FakeLoaded, asked: EnvelopeOptions) -> None:
    loaded.fault_at = 5 + 5 + 2  # after the warm-up and one cell, within the second
    result = bench_envelope(asked, EngineConfig(), lambda line: None)
    assert result["is_interrupted"]
    assert [(cell["group"], cell["concurrency"]) for cell in result["cells"]] == [("extract", 1)]


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        ({"dataset": None}, EngineConfig(), "--dataset FILE is needed"),
        ({"groups": ("nothing",)}, EngineConfig(), "--group nothing"),
        ({"concurrency": (1, 9)}, EngineConfig(), "runs at most 8 requests at once"),
        ({}, EngineConfig(speculation=SpeculationConfig(methods=())), "leave --no-speculation out"),
    ],
)
def test_what_cannot_hold(loaded: FakeLoaded, asked: EnvelopeOptions, change: dict, config, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench_envelope(replace(asked, **change), config, lambda line: None)
    assert not loaded.made


def test_prompts_that_all_fail_are_an_error(loaded: FakeLoaded, asked: EnvelopeOptions, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 3000}) + "\n")
    with pytest.raises(ConfigError, match=r"no request of all was answered: .*2048"):
        bench_envelope(replace(asked, dataset=str(path), groups=("all",)), EngineConfig(), lambda line: None)
