"""Users who come and go on an engine without a model, and what counts as settled."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from threefold.bench import step_load
from threefold.bench.step_load import StepRecord, bench_step_load, changes, settling, step_load_lines
from threefold.bench.step_load_options import StepLoadOptions
from threefold.cache.manager import CacheManager
from threefold.config import EngineConfig
from threefold.draft.policy import FixedDrafts
from threefold.engine.core import EngineCore
from threefold.engine.loop import BuiltEngine
from threefold.engine.outputs import EngineInfo
from threefold.errors import ConfigError
from threefold.schedule.scheduler import Scheduler
from threefold.testing.byte_tokenizer import ByteTokenizer
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor

TOKENIZER = ByteTokenizer()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> BuiltEngine:
    scheduler = Scheduler(CacheManager(512, 16, True), FixedDrafts(3), max_num_seqs=8, max_num_batched_tokens=64)
    core = EngineCore(scheduler, FakeExecutor(drafts=FakeDrafts(1.0)), vocab_size=TOKENIZER.vocab_size)
    built = BuiltEngine(core, EngineInfo("fake", 2048, TOKENIZER.vocab_size, ("fake",), frozenset({0}), 512, 16, 8))
    monkeypatch.setattr(step_load, "build_engine", lambda config: built)
    monkeypatch.setattr(step_load, "make_tokenizer", lambda info: TOKENIZER)
    return built


@pytest.fixture
def asked(tmp_path: Path) -> StepLoadOptions:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say {index}"}) + "\n" for index in range(3)))
    return StepLoadOptions(dataset=str(path), group="all", users=(2, 8, 2), steps=30, max_tokens=40)


def test_users_come_and_go(engine: BuiltEngine, asked: StepLoadOptions) -> None:
    result = bench_step_load(asked, EngineConfig())
    steps = result["steps"]
    assert [step["users"] for step in steps] == [2] * 30 + [8] * 30 + [2] * 30
    assert max(step["rows"] for step in steps[:30]) == 2
    assert steps[45]["rows"] == 8
    assert all(step["rows"] <= 2 for step in steps[60:])  # from the first step on: who leaves is gone
    assert max(step["admitted"] for step in steps) > 8
    assert result["num_draft_tokens"] == result["num_accepted_tokens"] > 0
    assert [(change["at_step"], change["from"], change["to"]) for change in result["changes"]] == [
        (30, 2, 8),
        (60, 8, 2),
    ]
    assert engine.core.stats().num_held_blocks == 0
    assert "2 to 8 users" in "\n".join(step_load_lines(result))
    json.dumps(result)


FOUR = [4] * 80


def test_settled_is_the_first_window_near_the_later_mean() -> None:
    found = settling([40] * 20 + [4] * 60, FOUR)
    assert found == {"steady_per_row": 1.0, "settled_after_steps": 30, "share_within": 1.0}


def test_next_to_no_drafts_have_settled_too() -> None:
    assert settling([0] * 20 + [1] + [0] * 59, FOUR)["settled_after_steps"] == 10


def test_passing_through_the_band_is_told_from_staying_in_it() -> None:
    found = settling(([0] * 10 + [16] * 10) * 4, FOUR)
    assert found["settled_after_steps"] < 40
    assert found["share_within"] < 1.0


def test_what_is_far_off_all_the_time_never_settles() -> None:
    assert settling([0] * 79 + [800], FOUR)["settled_after_steps"] is None  # jumps over the band
    assert settling([4] * 9, [4] * 9)["settled_after_steps"] is None  # shorter than a window
    assert settling([0] * 20, [0] * 20)["steady_per_row"] == 0.0  # nothing but prompts


def test_rows_are_in_place_when_every_user_has_an_answer_begun() -> None:
    records = [StepRecord(2, 2, 2, 2, 2, 4, 2, 1.0)] * 20
    records += [StepRecord(4, 4, committing, 8, 4, 8, 4, 1.0) for committing in [2] * 5 + [4] * 25]
    (change,) = changes(records)
    assert (change["at_step"], change["rows_in_place_after_steps"]) == (20, 6)
    assert (change["admitted"]["steady_per_row"], change["asked"]["steady_per_row"]) == (1.0, 2.0)
    assert changes(records[:20]) == []
    unfinished = [*records[:20], *[records[20]] * 20]
    assert changes(unfinished)[0]["rows_in_place_after_steps"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataset": None}, "--dataset FILE is needed"),
        ({"users": (4, 9)}, "--users 9: the engine runs at most 8 requests at once"),
    ],
)
def test_what_cannot_hold(engine: BuiltEngine, asked: StepLoadOptions, change: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench_step_load(replace(asked, **change), EngineConfig())


def test_prompts_that_all_fail_are_an_error(engine: BuiltEngine, asked: StepLoadOptions, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 3000}) + "\n")
    with pytest.raises(ConfigError, match=r"no request can be answered: .*2048"):
        bench_step_load(replace(asked, dataset=str(path)), EngineConfig())
