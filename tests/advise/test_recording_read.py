"""What `serve --record` writes is what `profile` reads."""

import pytest

from threefold.advise.log import read_logs
from threefold.advise.portrait import tokens_a_step
from threefold.advise.replay import replay
from threefold.advise.reuse import hit_rate, prompt_reuse
from threefold.advise.trace import to_trace
from threefold.request import SamplingParams
from threefold.server.call import Call
from threefold.server.prompts import TextPrompt
from threefold.server.recording import FileRecorder


@pytest.mark.parametrize("content", ["text", "hashes", "none"])
def test_recordings_of_each_content(tmp_path, encoder, content):
    path = tmp_path / "record.jsonl"
    recorder = FileRecorder(path, content, clock=lambda: 0.0)
    for index in range(6):
        prompt = [*range(64), *range(100 * (index + 1), 100 * (index + 1) + 16)]
        output = prompt[20:50]
        call = Call("id", 0, "m", "/v1/completions", [TextPrompt(prompt, None)], SamplingParams(), float(index))
        recorder.write(call, 0, output, index + 0.1, index + 0.4)
    log = read_logs([path])
    assert log.forms == {"recording": 6}
    trace = to_trace(log, encoder)
    assert [one.arrival_s for one in trace] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert {(one.num_prompt_tokens, one.num_output_tokens) for one in trace} == {(80, 30)}
    assert log.requests[0].ttft_ms == pytest.approx(100)
    needed, prompt_tokens = prompt_reuse(trace)
    replayed = replay(trace)
    if content == "none":
        assert (replayed.num_sampled, hit_rate(needed, prompt_tokens, None)) == (0, 0.0)
        return
    assert hit_rate(needed, prompt_tokens, None) == pytest.approx(5 * 64 / (6 * 80))
    assert tokens_a_step(list(replayed.drafts["ngram"].values())) > 4
