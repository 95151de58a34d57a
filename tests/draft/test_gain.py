import pytest

from threefold.draft.gain import Gain, StepGain, Verified


def test_nothing_known_is_no_difference() -> None:
    gain = Gain()
    assert gain.ratio == 1.0
    gain.observe(StepGain(committed=0, decode_ms=0.0, prompt_ms=50.0, plain_committed=0, plain_decode_ms=0.0), {})
    assert gain.ratio == 1.0


def test_the_ratio_is_that_of_tokens_over_time() -> None:
    gain = Gain()
    for _ in range(100):
        gain.observe(
            StepGain(committed=30, decode_ms=15.0, prompt_ms=0.0, plain_committed=10, plain_decode_ms=10.0), {}
        )
    assert gain.ratio == pytest.approx(2.0)


def test_a_loss_shows_and_the_past_fades() -> None:
    gain = Gain()
    for _ in range(500):
        gain.observe(StepGain(20, 10.0, 0.0, 10, 10.0), {})
    for _ in range(1500):
        gain.observe(StepGain(10, 12.5, 0.0, 10, 10.0), {})
    assert gain.ratio == pytest.approx(0.8, abs=0.02)


def test_the_error_is_the_curves_bias_between_the_two_kinds_of_step() -> None:
    honest, biased = Gain(), Gain()
    for gain, off in ((honest, 1.0), (biased, 1.2)):
        for i in range(200):
            gain.observe(StepGain(20, 10.0, 0.0, 10, 10.0), {})
            wobble = 1.02 if i % 2 else 1 / 1.02
            gain.observe_prediction(True, 10.0, 10.0 * off * wobble)
            gain.observe_prediction(False, 10.0, 10.0 * wobble)
    assert honest.error < 0.02
    assert biased.error == pytest.approx(2.0 * 0.18, abs=0.05)


def test_prompts_weigh_on_both_sides_alike() -> None:
    """Each token carries 1 ms of prompt: 2 ms with drafts against 4 without, not the 4 to 1 of decoding alone."""
    gain = Gain()
    for _ in range(100):
        gain.observe(
            StepGain(committed=30, decode_ms=30.0, prompt_ms=30.0, plain_committed=10, plain_decode_ms=30.0), {}
        )
    assert gain.ratio == pytest.approx(2.0)


def test_each_drafter_earns_its_accepted_drafts_and_pays_its_share() -> None:
    gain = Gain()
    for _ in range(50):  # both drafters verify four drafts; one of them is always right, the other never
        gain.observe(
            StepGain(committed=14, decode_ms=12.0, prompt_ms=0.0, plain_committed=10, plain_decode_ms=10.0),
            {"good": Verified(4, 4), "bad": Verified(4, 0)},
        )

    assert gain.ratio == pytest.approx(1.4 / 1.2)
    assert gain.by_drafter == {"good": pytest.approx(1.4 / 1.1), "bad": pytest.approx(1 / 1.1)}
