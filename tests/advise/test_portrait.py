import json
import random

from threefold.advise.log import read_logs
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import replay
from threefold.advise.tables import portrait_lines
from threefold.advise.trace import to_trace

SECRET = "swordfish"


def drawn(path, encoder, **how):
    log = read_logs([path])
    trace = to_trace(log, encoder)
    return draw_portrait(log, trace, replay(trace), **how)


def words(dice, num):
    return " ".join(f"w{dice.randrange(50_000)}" for _ in range(num))


def test_a_log_whose_truth_is_known(write_log, encoder):
    dice = random.Random(0)
    rules = " ".join(f"rule{index}" for index in range(320))
    entries = []
    for index in range(40):
        quoted = words(dice, 79)
        answer = quoted if index % 2 else words(dice, 79)
        entries.append(
            {
                "prompt": f"{rules} {quoted} {SECRET}",
                "output": answer,
                "arrival_s": index * 2.0,
                "category": "copy" if index % 2 else "new",
            }
        )
    portrait = drawn(write_log(entries), encoder)
    assert portrait.num_requests == 40
    assert portrait.arrivals["rate_rps"] == 0.5
    assert portrait.arrivals["gamma_shape"] > 100, "as even as can be"
    assert portrait.prompt_tokens["mean"] == 400
    assert portrait.output_tokens["p50"] == 79
    assert abs(portrait.prefix["best_hit_rate"] - 0.8 * 39 / 40) < 0.01
    copy = portrait.kinds["copy"]["predictability"]["ngram"]
    new = portrait.kinds["new"]["predictability"]["ngram"]
    assert copy["survival"][0] > 0.9 > 0.05 > new["survival"][0]
    assert copy["tokens_a_step"] > 5
    assert new["tokens_a_step"] < 1.1


def test_no_text_is_in_it_unless_asked(write_log, encoder):
    path = write_log([{"prompt": f"{SECRET} one two", "output": f"{SECRET} three"}] * 3)
    plain = drawn(path, encoder)
    assert SECRET not in json.dumps(plain.to_dict())
    assert SECRET not in "\n".join(portrait_lines(plain))
    shown = drawn(path, encoder, include_text=True)
    assert SECRET in "\n".join(portrait_lines(shown))


def test_a_trace_without_content(write_log, encoder):
    entries = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 8, "hash_ids": [1, 100 + at]}
        for at in range(20)
    ]
    portrait = drawn(write_log(entries), encoder)
    assert abs(portrait.prefix["best_hit_rate"] - 0.5 * 19 / 20) < 1e-9
    assert portrait.replay["num_sampled"] == 0
    lines = portrait_lines(portrait)
    assert any("no answers to replay" in line for line in lines)
    (found,) = [line for line in lines if "LRU cache" in line]
    assert found.count("48%") == 1, "sizes beyond the one that finds all there is say nothing more"


def test_lengths_alone(write_log, encoder):
    portrait = drawn(write_log([{"threefold": 1, "prompt_tokens": 10, "output_tokens": 5}]), encoder)
    assert not portrait.prefix["is_known"]
    assert any("neither prompts nor block hashes" in line for line in portrait_lines(portrait))
    new = drawn(write_log([{"prompt": f"{at} " * 40, "output": "x"} for at in range(5)]), encoder)
    assert not [line for line in portrait_lines(new) if "LRU cache" in line], "there is nothing to find"


def test_mixes(write_log, encoder):
    body = {"messages": [{"role": "user", "content": "x"}]}
    entries = [{"request": {**body, "temperature": t}} for t in (0, 0, 0.4, 1.0)]
    entries.append({"request": {**body, "tools": [{}]}})
    entries.append("{")
    portrait = drawn(write_log(entries), encoder)
    assert portrait.temperature == {"0": 0.4, "not said": 0.2, "up to 0.5": 0.2, "up to 1": 0.2}
    assert portrait.structured_share == 0.2
    assert (portrait.num_faults, portrait.num_assumed_lengths) == (1, 5)
    assert any("line 6" in line for line in portrait_lines(portrait))
