"""Answers for logs that have prompts only: the model itself gives them, once, all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from threefold.advise.cores import core_with
from threefold.advise.drive import Ask, Drive
from threefold.advise.logged import Log, LoggedRequest
from threefold.advise.simulate import Settings
from threefold.advise.trace import Encoder
from threefold.engine.loaded import LoadedEngine


def answer_all(log: Log, loaded: LoadedEngine, encoder: Encoder, max_tokens: int, say: Callable[[str], None]) -> Log:
    """The log with every answer replaced by this model's own, so that what is predicted is what it would do here."""
    info = loaded.info()
    limits = loaded.opened.limits
    ends = frozenset(info.eos_token_ids)
    prompts = [_prompt(one, encoder) for one in log.requests]
    usable = [
        place
        for place, prompt in enumerate(prompts)
        if prompt and len(prompt) + max_tokens <= min(info.max_model_len, info.num_blocks * info.block_size)
    ]
    say(f"answering {len(usable)} prompts with {info.model}")
    asks = [Ask(prompts[place] or [], max_tokens, log.requests[place].temperature or 0.0, ends) for place in usable]
    drive = Drive(core_with(loaded, Settings(info.max_num_seqs, limits.max_num_batched_tokens)))
    drive.run(asks, info.max_num_seqs)
    answered: list[LoggedRequest] = []
    for index, place in enumerate(usable):
        output = drive.outputs.get(index)
        if output:
            answered.append(
                replace(log.requests[place], prompt_token_ids=prompts[place], output_token_ids=output, output=None)
            )
    return Log(answered, log.forms, log.faults)


def _prompt(one: LoggedRequest, encoder: Encoder) -> list[int] | None:
    if one.prompt_token_ids is not None:
        return one.prompt_token_ids
    if one.messages is not None:
        return encoder.chat(one.messages)
    return encoder.text(one.prompt) if one.prompt is not None else None
