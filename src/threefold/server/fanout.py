"""One API call may ask several prompts; here they become one stream of pieces."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing

from threefold.engine.outputs import OutputDelta
from threefold.server.call import Call, Client, Pieces

_SERIAL = itertools.count()


def run_call(client: Client, call: Call) -> Pieces:
    """The pieces of all answers, `index` counted over the whole call; closing it aborts whatever still runs."""
    if len(call.prompts) == 1:
        return _run_prompt(client, call, 0)
    return _interleaved(client, call)


def _run_prompt(client: Client, call: Call, place: int) -> Pieces:
    # Clients may send the same request id twice; the engine's must be unique.
    return client.generate(
        call.prompts[place].token_ids,
        call.params,
        request_id=f"{call.response_id}-{next(_SERIAL)}",
        priority=call.priority,
        cache_salt=call.cache_salt,
    )


async def _interleaved(client: Client, call: Call) -> AsyncGenerator[OutputDelta, None]:
    ready: asyncio.Queue[OutputDelta | BaseException | None] = asyncio.Queue(maxsize=2 * len(call.prompts))

    async def pump(place: int) -> None:
        try:
            async with aclosing(_run_prompt(client, call, place)) as pieces:
                async for piece in pieces:
                    piece.index += place * call.params.n
                    await ready.put(piece)
            await ready.put(None)
        except Exception as error:  # noqa: BLE001  (raised again below, where the call's owner sees it)
            await ready.put(error)

    pumps = [asyncio.create_task(pump(place)) for place in range(len(call.prompts))]
    try:
        num_running = len(pumps)
        while num_running:
            item = await ready.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
