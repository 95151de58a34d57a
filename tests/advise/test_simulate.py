import numpy as np
import pytest

from threefold.advise.curve_executor import Host, Machine, num_pairs
from threefold.advise.replay import Drafts
from threefold.advise.simulate import Settings, Simulation
from threefold.advise.trace import TraceRequest, block_names
from threefold.advise.traffic import NO_DRAFTS, SimRequest
from threefold.cost import CostCurve, StepShape
from threefold.draft.controller import Controller, FixedDrafts

CURVE = CostCurve([(1, 4.0), (64, 4.3), (512, 12.0), (2048, 45.0)], kv_token_ms=1e-4)
MACHINE = Machine(CURVE, num_blocks=4000)
SETTINGS = Settings(64, 2048)


def sim(
    serial: int, num_prompt: int = 40, num_output: int = 10, *, arrival_s=None, drafts=NO_DRAFTS, shared=0
) -> SimRequest:
    tokens = [*range(shared), *(1000 * (serial + 1) + place for place in range(num_prompt - shared))]
    source = TraceRequest(num_prompt, num_output, block_names(tokens), arrival_s)
    return SimRequest(source, arrival_s, drafts, serial, len(source.names))


def perfect(num_output: int, length: int = 4) -> Drafts:
    return Drafts([length] * (num_output - 1), [(0.9,) * length] * (num_output - 1))


def test_one_request_takes_what_the_curve_says():
    result = Simulation(MACHINE, SETTINGS).run([sim(0)], 1)
    steps = [StepShape(40, 1, 40), *(StepShape(1, 1, 40 + index) for index in range(1, 10))]
    expected = [CURVE.forward_ms(shape) for shape in steps]
    assert result.duration_s * 1000 == pytest.approx(sum(expected))
    assert result.ttft_ms == [pytest.approx(expected[0])]
    assert result.tpot_ms == [pytest.approx(sum(expected[1:]) / 9)]
    assert (result.num_done, result.output_tokens, result.prompt_tokens) == (1, 10, 40)


def test_the_host_adds_to_every_step_and_row():
    plain = Simulation(MACHINE, SETTINGS).run([sim(0), sim(1)], 2)
    slow = Machine(CURVE, 4000, host=Host(step_ms=1.0, row_ms=0.5))
    with_host = Simulation(slow, SETTINGS).run([sim(0), sim(1)], 2)
    assert (with_host.duration_s - plain.duration_s) * 1000 == pytest.approx(10 * 2.0)


def test_steps_with_drafts_take_what_such_steps_were_measured_to_take():
    """The curve holds best times, and knows nothing of controller and verification: drafts looked 5 to 20 points better
    than they were."""
    plain = sim(0, num_output=11, drafts=NO_DRAFTS)
    right = sim(0, num_output=11, drafts=perfect(11, length=4))
    measured = {"host": Host(1.0, 0.5), "asking": Host(1.5, 0.5), "verifying": Host(2.0, 0.5, 0.25)}
    as_measured, as_was = Machine(CURVE, 4000, **measured), Machine(CURVE, 4000, host=Host(1.0, 0.5))

    def seconds(machine: Machine, one: SimRequest) -> float:
        return Simulation(machine, SETTINGS, FixedDrafts(4)).run([one], 1).duration_s

    # Nine of eleven steps ask, and nothing is found; before the last token a draft would come too late.
    assert seconds(as_measured, plain) - seconds(as_was, plain) == pytest.approx(9 * 0.5e-3)
    # Two steps verify four drafts each: one token of the prompt's step, five each of two more.
    assert seconds(as_measured, right) - seconds(as_was, right) == pytest.approx((0.5 + 2 * (1.0 + 4 * 0.25)) * 1e-3)


def test_steps_with_prompts_have_a_curve_of_their_own():
    prompts = CostCurve([(1, 20.0), (64, 30.0), (128, 50.0)], kv_token_ms=0.1)
    machine = Machine(CURVE, 4000, host=Host(step_ms=1.0, row_ms=0.5), prompts=prompts)
    result = Simulation(machine, Settings(8, 39)).run([sim(0, num_output=5), sim(1)], 2)

    def beside_ms(kv_tokens: int) -> float:  # a token that reads so many, at the curve's own price
        return CURVE.forward_ms(StepShape(1, 1, 1 + kv_tokens)) - CURVE.forward_ms(StepShape(1, 1, 1))

    first = prompts.forward_ms(StepShape(39, 1, 20)) + 0.5  # 39 tokens look at 20 each in the mean
    second = prompts.forward_ms(StepShape(39, 1, 19)) + beside_ms(40) + 2 * 0.5  # 38 of the other, and the last one
    third = prompts.forward_ms(StepShape(3, 1, round((39 + 40) / 3))) + beside_ms(41) + 2 * 0.5
    assert result.ttft_ms == [pytest.approx(first + second), pytest.approx(first + second + third)]


def test_pairs_of_queries_and_keys():
    assert num_pairs(1, 9) == 10
    assert num_pairs(4, 0) == 1 + 2 + 3 + 4
    assert num_pairs(2, 3) == 4 + 5


def test_requests_wait_for_their_time():
    result = Simulation(MACHINE, SETTINGS).run([sim(0, arrival_s=0.0), sim(1, arrival_s=100.0)])
    assert result.ttft_ms[0] == pytest.approx(result.ttft_ms[1])
    assert result.duration_s > 100


def test_a_crowd_waits_in_the_queue():
    crowd = [sim(index, arrival_s=0.0) for index in range(20)]
    result = Simulation(MACHINE, Settings(4, 2048)).run(crowd)
    assert result.num_done == 20
    assert max(result.ttft_ms) > 4 * min(result.ttft_ms)


def test_closed_loop_keeps_its_users():
    result = Simulation(MACHINE, SETTINGS).run([sim(index) for index in range(40)], 8)
    assert 6 < result.mean_running <= 8
    assert result.output_rate >= result.output_tokens / result.duration_s, "the tail is not in the rate"


def test_shared_prefixes_are_found_only_with_a_cache():
    traffic = [sim(index, 160, shared=128) for index in range(6)]
    found = Simulation(MACHINE, SETTINGS).run(traffic, 1)
    assert found.stats.prefix_hits == 5 * 128
    cold = Simulation(MACHINE, Settings(64, 2048, has_prefix_cache=False)).run(traffic, 1)
    assert cold.stats.prefix_hits == 0
    assert cold.duration_s > found.duration_s


def test_what_never_fits_is_left_out_and_said():
    result = Simulation(Machine(CURVE, num_blocks=4), SETTINGS).run([sim(0, 200), sim(1, 20)], 2)
    assert (result.num_done, result.num_too_long) == (1, 1)


def test_everything_too_long_ends():
    assert Simulation(Machine(CURVE, num_blocks=2), SETTINGS).run([sim(0, 200)] * 3, 1).num_too_long == 3
    assert Simulation(Machine(CURVE, num_blocks=2), SETTINGS).run([sim(0, 200, arrival_s=1.0)]).num_too_long == 1


def test_few_blocks_preempt_and_all_are_done():
    traffic = [sim(index, 30, 100) for index in range(12)]
    result = Simulation(Machine(CURVE, num_blocks=30), SETTINGS).run(traffic, 12)
    assert result.num_done == 12
    assert result.stats.num_preemptions > 0


def test_right_drafts_save_steps_and_wrong_ones_cost_time():
    def rate(drafts: Drafts) -> float:
        return Simulation(MACHINE, SETTINGS, FixedDrafts(4)).run([sim(0, num_output=101, drafts=drafts)], 1).output_rate

    plain = rate(NO_DRAFTS)
    assert rate(perfect(101)) > 4 * plain
    wrong = Drafts([0] * 100, [(0.9,) * 4] * 100)
    assert rate(wrong) < plain


def test_the_controller_learns_here_as_in_a_server():
    policy = Controller(CostCurve.from_dict(CURVE.to_dict()), 8)
    traffic = [sim(index, num_output=101, drafts=perfect(101, 8)) for index in range(8)]
    result = Simulation(MACHINE, SETTINGS, policy).run(traffic, 2)
    assert result.stats.num_accepted_tokens > 0.5 * result.output_tokens
    assert policy.gain_ratio > 2


def test_a_draft_model_costs_its_rounds():
    traffic = [sim(0, num_output=101, drafts=perfect(101))]
    free = Simulation(MACHINE, SETTINGS, FixedDrafts(4)).run(traffic, 1)
    priced = Simulation(Machine(CURVE, 4000, draft_ratio=0.25), SETTINGS, FixedDrafts(4)).run(traffic, 1)
    assert priced.duration_s > 1.5 * free.duration_s


def test_same_traffic_same_figures():
    traffic = [sim(index, num_output=30, drafts=perfect(30)) for index in range(10)]
    runs = [
        Simulation(MACHINE, SETTINGS, Controller(CostCurve.from_dict(CURVE.to_dict()), 8)).run(traffic, 4) for _ in "ab"
    ]
    assert runs[0].to_dict() == runs[1].to_dict()


def test_stand_in_tokens_tell_blocks_apart():
    a, b = sim(0, 64, shared=32).tokens(), sim(1, 64, shared=32).tokens()
    assert a[:32] == b[:32]
    assert a[32] != b[32]
    assert len(a) == 74
    assert np.array(a, dtype=np.int64).min() >= 0
