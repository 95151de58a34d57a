"""Records what was asked and answered, a JSON line an answer, for `threefold profile` and `advise` to read.

Three contents (`--record-content`); all have times, token counts and sampling fields:

    text     token ids of prompt and answer. Whoever has the model can read them.
    hashes   the default. Names of 16-token blocks (keyed hashes, chained; the key lives in this process alone), so
             that shared prefixes can be counted; and `pairs`: each token with the one before it, numbered by first
             occurrence within the request. That is all that a drafter by lookup needs to be replayed: where the text
             repeats itself, by two tokens or more. No word can be read in it; how the text repeats can be told.
    none     nothing more.

A file that cannot be written any more ends the recording, with one line in the log, and never a request.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from threefold.engine.outputs import OutputDelta
from threefold.errors import ConfigError
from threefold.server.call import Call

FORM = 1
BLOCK_TOKENS = 16
_logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Tape(Protocol):
    """Follows one call."""

    def note(self, piece: OutputDelta) -> None:
        """A piece came from the engine."""

    def close(self) -> None:
        """The call is over; what was answered is written down."""


class Recorder(Protocol):
    """Makes tapes."""

    def tape(self, call: Call) -> Tape:
        """For a call that begins."""


class NoRecorder:
    """Recording off; its own tape."""

    def tape(self, call: Call) -> Tape:  # noqa: ARG002
        """Itself."""
        return self

    def note(self, piece: OutputDelta) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class FileRecorder:
    """Appends to a file.

    Args:
        path: the file; created when it is not there.
        content: text, hashes or none.
        clock: the one that calls' arrivals are read from.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path, content: str, clock: Callable[[], float] = time.perf_counter) -> None:
        try:
            self._file: BinaryIO | None = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"--record {path}: cannot write it: {error.strerror}") from None
        self.clock = clock
        self._content = content
        self._key = os.urandom(32)
        self._epoch_s = time.time() - clock()

    def tape(self, call: Call) -> Tape:
        """A tape that writes here."""
        return _FileTape(self, call)

    def write(self, call: Call, index: int, output: list[int], first_s: float, last_s: float) -> None:
        """Append one answer."""
        if self._file is None:
            return
        prompt = call.prompt_of(index).token_ids
        line: dict[str, Any] = {
            "threefold": FORM,
            "model": call.model,
            "endpoint": call.endpoint,
            "arrival_s": round(self._epoch_s + call.arrival_s, 4),
            "prompt_tokens": len(prompt),
            "output_tokens": len(output),
            "ttft_ms": round((first_s - call.arrival_s) * 1000, 3),
            "e2e_ms": round((last_s - call.arrival_s) * 1000, 3),
            "temperature": call.params.temperature,
            "top_p": call.params.top_p,
            "max_tokens": call.params.max_tokens,
            "n": call.params.n,
            **self._contents(prompt, output, call.cache_salt),
        }
        try:
            self._file.write(_encode(line) + b"\n")
        except OSError as error:
            _logger.error("--record: cannot write any more (%s); the recording ends here", error.strerror)
            self._file.close()
            self._file = None

    def _contents(self, prompt: list[int], output: list[int], salt: str) -> dict[str, Any]:
        if self._content == "text":
            return {"prompt_token_ids": prompt, "output_token_ids": output}
        if self._content == "hashes":
            whole = [*prompt, *output]
            return {"block_hashes": block_hashes(whole, self._key, salt), "pairs": numbered_pairs(whole)}
        return {}


class _FileTape:
    """What one call's answers came to so far."""

    def __init__(self, recorder: FileRecorder, call: Call) -> None:
        self._recorder = recorder
        self._call = call
        self._outputs: dict[int, list[int]] = {}
        self._times: dict[int, tuple[float, float]] = {}

    def note(self, piece: OutputDelta) -> None:
        """Keep the tokens and when they came."""
        if not piece.token_ids:
            return
        now_s = self._recorder.clock()
        self._outputs.setdefault(piece.index, []).extend(piece.token_ids)
        self._times[piece.index] = (self._times.get(piece.index, (now_s, now_s))[0], now_s)

    def close(self) -> None:
        """Write every answer that has a token."""
        for index, output in sorted(self._outputs.items()):
            self._recorder.write(self._call, index, output, *self._times[index])
        self._outputs.clear()


def block_hashes(token_ids: Sequence[int], key: bytes, salt: str) -> list[str]:
    """Names of the full blocks; each stands for all tokens up to its end, under the salt that keeps caches apart."""
    name = salt.encode("utf-8", "surrogatepass")
    names = []
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = ",".join(map(str, token_ids[start : start + BLOCK_TOKENS])).encode()
        name = blake2b(name + b"|" + block, digest_size=8, key=key).digest()
        names.append(name.hex())
    return names


def numbered_pairs(token_ids: Sequence[int]) -> list[int]:
    """Each token with the one before it, equal pairs by equal numbers, in the order of their first occurrence."""
    numbers: dict[tuple[int, int], int] = {}
    before = -1
    numbered = []
    for token_id in token_ids:
        numbered.append(numbers.setdefault((before, token_id), len(numbers)))
        before = token_id
    return numbered
