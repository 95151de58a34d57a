"""All that needs a real engine, on a made-up model of a few thousand weights."""

import pytest

from threefold.advise.advise import Wishes, advise
from threefold.advise.answers import answer_all
from threefold.advise.cores import core_with
from threefold.advise.drive import Ask, Drive
from threefold.advise.engine_measure import EngineMeasure, OneEngine
from threefold.advise.evaluate import Evaluator
from threefold.advise.facts import MachineFacts
from threefold.advise.ladder import RUNGS
from threefold.advise.ladder_run import EngineRungs, demonstration
from threefold.advise.levers import FP8, KV8, Assumptions, base_variant, lever_variants
from threefold.advise.logged import Log, LoggedRequest
from threefold.advise.measured import measure_machine
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import replay
from threefold.advise.simulate import Settings
from threefold.advise.trace import Encoder, to_trace
from threefold.advise.verify import LIVE, Verifier, verify
from threefold.bench.dummy import write_dummy
from threefold.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from threefold.engine.build import make_tokenizer


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THREEFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield OneEngine(
            EngineConfig(
                model=ModelConfig(
                    model=str(write_dummy("small", folder)), load_format="dummy", dtype="float32", max_model_len=256
                ),
                cache=CacheConfig(num_blocks=128),
                scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=128),
            )
        )


@pytest.fixture
def loaded(engine):
    return engine.loaded()


@pytest.fixture(scope="module")
def facts(engine) -> MachineFacts:
    return measure_machine(engine.loaded())


@pytest.fixture
def encoder(loaded) -> Encoder:
    return Encoder(make_tokenizer(loaded.info()))


def test_the_machine_is_measured(facts):
    assert facts.curve["is_measured"]
    assert (facts.num_blocks, facts.max_num_seqs, facts.max_num_batched_tokens) == (128, 8, 128)
    assert facts.asking is not None
    assert facts.verifying is not None, "its speculation is on, so drafts were measured"
    assert [rows for rows, _ in facts.host["by_rows"]] == [1, 4], "no more than 8 rows are possible"
    assert facts.machine().verifying.ms(4, 8) >= facts.machine().host.ms(4)
    assert facts.kv_token_bytes > 0
    assert facts.prompts is not None
    knots = dict(facts.prompts["knots"])
    assert {32, 64, 128} <= knots.keys(), "256 tokens are two chunks"
    assert 0 < knots[32] <= knots[128]
    assert (facts.is_dummy, facts.quantization, facts.is_kv8) == (True, "", False)
    assert MachineFacts.from_dict(facts.to_dict()) == facts


def test_settings_change_on_a_loaded_model(loaded):
    core = core_with(loaded, Settings(2, 64, has_prefix_cache=False))
    prompt = list(range(5, 45))
    result = Drive(core).run([Ask(prompt, 4)] * 6, 6)
    assert result.num_done == 6
    assert result.stats.prefix_hits == 0
    warm = Drive(core_with(loaded, Settings(2, 64))).run([Ask(prompt, 4)] * 6, 1)
    assert warm.stats.prefix_hits == 5 * 32


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_answers_alike(loaded, rung):
    asks = [Ask([7, 8, 9, 10 + index], 12) for index in range(5)]
    result = EngineRungs(loaded).run(rung, asks, 3)
    assert (result.num_done, result.output_tokens) == (5, 60)


def test_the_demonstration_has_two_loads(encoder):
    copying, stories = demonstration(encoder, 16)
    assert len(copying.asks) == len(stories.asks) == 64
    first, second = copying.asks[0].token_ids, copying.asks[1].token_ids
    shared = next(at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert shared > 0.3 * len(first)
    assert len({tuple(ask.token_ids) for ask in stories.asks}) == 64


def test_prompts_are_answered_advised_and_verified(engine, loaded, facts, encoder):
    requests = [LoggedRequest(prompt_token_ids=list(range(index, index + 40))) for index in range(6)]
    requests.append(LoggedRequest(prompt_token_ids=[1] * 1000))  # longer than the model's context
    log = answer_all(Log(requests, {}, []), loaded, encoder, 16, lambda line: None)
    assert len(log.requests) == 6
    assert all(one.output_token_ids for one in log.requests)
    trace = to_trace(log, encoder)
    replayed = replay(trace)
    wishes = Wishes(concurrency=2, samples=2, row_steps=500)
    portrait = draw_portrait(log, trace, replayed)
    advice = advise(facts, trace, replayed, portrait, wishes, say=lambda line: None)
    assert len(advice.verdicts) == 9
    evaluator = Evaluator(trace, replayed, draft_acceptance=0.5, row_steps=500)
    levers = lever_variants(facts, replayed.propose_ms, Assumptions())
    verifier = Verifier(EngineMeasure(engine), trace, evaluator)
    possible = [lever for lever in levers if lever.name in (*LIVE, FP8)]
    cells = verify([verifier], base_variant(facts), possible, [2], rounds=1, say=lambda line: None)
    assert [cell.lever for cell in cells] == ["max_num_seqs 1 → 2", *LIVE, FP8]
    assert all(cell.measured_rate > 0 for cell in cells)


def test_the_model_in_another_form_takes_the_place_of_the_first(engine):
    fp8 = engine.loaded(FP8)
    assert fp8.opened.spec.quantization is not None
    assert engine.loaded(FP8) is fp8
    assert engine.loaded().opened.spec.quantization is None
    assert engine.forms == [FP8, KV8]
