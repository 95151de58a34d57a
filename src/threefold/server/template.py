"""The parent's side of chat templates: one warm worker process, asked over pipes, killed when it takes too long.

Threads cannot be killed, processes can; so a template that loops for ever costs one request two seconds, no more.
What crosses the pipes is JSON, never pickle.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from threefold.errors import InvalidRequestError
from threefold.server.limits import TEMPLATE_TIMEOUT_S
from threefold.text import template_worker
from threefold.text.template_worker import MAX_RENDERED_BYTES

START_TIMEOUT_S = 20.0


class TemplateRenderer:
    """Renders one template, one chat at a time.

    Args:
        source: the template.
        constants: names every rendering sees, such as `bos_token`.
        timeout_s: wall clock of one rendering.
        max_bytes: longest result.
    """

    def __init__(
        self,
        source: str,
        constants: Mapping[str, str],
        *,
        timeout_s: float = TEMPLATE_TIMEOUT_S,
        max_bytes: int = MAX_RENDERED_BYTES,
    ) -> None:
        self._start = {"source": source, "constants": dict(constants), "timeout_s": timeout_s}
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._turn = asyncio.Lock()
        self._worker: asyncio.subprocess.Process | None = None

    async def render(self, chat: dict[str, Any], extra: dict[str, Any]) -> str:
        """The chat as the prompt's text.

        Raises:
            InvalidRequestError: the template refuses the chat, takes too long or renders too much.
        """
        ask = msgspec.json.encode({"chat": chat, "extra": extra, "max_bytes": self._max_bytes})
        async with self._turn:
            worker = await self._warm_worker()
            reply = await self._exchange(worker, ask, self._timeout_s)
        if "error" in reply:
            raise InvalidRequestError(reply["error"], param="messages")
        text: str = reply["text"]
        return text

    async def warm_up(self) -> None:
        """Start the worker before the first request needs it.

        Raises:
            InvalidRequestError: the template is not valid.
        """
        async with self._turn:
            await self._warm_worker()

    async def close(self) -> None:
        """End the worker."""
        async with self._turn:
            await self._kill()

    async def _warm_worker(self) -> asyncio.subprocess.Process:
        if self._worker is not None and self._worker.returncode is None:
            return self._worker
        # By path and with -P: the package's own imports, torch among them, stay out of the worker.
        self._worker = worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(Path(template_worker.__file__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        reply = await self._exchange(worker, msgspec.json.encode(self._start), START_TIMEOUT_S)
        if "error" in reply:
            await self._kill()
            raise InvalidRequestError(reply["error"], param="messages")
        return worker

    async def _exchange(self, worker: asyncio.subprocess.Process, ask: bytes, timeout_s: float) -> dict[str, str]:
        is_answered = False
        try:
            async with asyncio.timeout(timeout_s):
                reply = await _ask(worker, ask)
            is_answered = True
        except TimeoutError:
            raise InvalidRequestError(
                f"the chat template did not finish within {timeout_s:g} s", param="messages"
            ) from None
        except (OSError, asyncio.IncompleteReadError):
            raise InvalidRequestError("the chat template ended its worker process", param="messages") from None
        finally:  # also when the request is cancelled: a half-read answer would be the next request's
            if not is_answered:
                await self._kill()
        return reply

    async def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            worker.kill()
            await worker.wait()


async def _ask(worker: asyncio.subprocess.Process, ask: bytes) -> dict[str, str]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(template_worker.LENGTH.pack(len(ask)) + ask)
    await worker.stdin.drain()
    (length,) = template_worker.LENGTH.unpack(await worker.stdout.readexactly(template_worker.LENGTH.size))
    reply: dict[str, str] = msgspec.json.decode(await worker.stdout.readexactly(length))
    return reply
