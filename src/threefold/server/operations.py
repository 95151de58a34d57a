"""What operators, probes and dashboards ask: health, version, load, metrics, the prefix cache, the status page."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from threefold import __version__
from threefold.errors import EngineDeadError
from threefold.metrics import EngineStats
from threefold.server import limits
from threefold.server.api_page import POLICY, api_page
from threefold.server.exposition import render_metrics
from threefold.server.routes import json_response
from threefold.server.state import ServerState, state_of

STATS_TIMEOUT_S = 5.0
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """200 while new requests are taken, 503 when the engine is dead or the server is leaving."""
    return Response(status_code=200 if state_of(request).is_ready else 503)


@router.get("/ping", operation_id="ping_get", response_model=None)
@router.post("/ping", operation_id="ping_post", response_model=None)
async def ping(request: Request) -> Response:
    """The same, as SageMaker asks it."""
    return await health(request)


@router.get("/version", response_model=None)
async def version() -> Response:
    """The server's version."""
    return json_response({"version": __version__})


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """All counters, in Prometheus' text format or OpenMetrics, as the Accept header asks."""
    state = state_of(request)
    body, content_type = render_metrics(
        state.client.info, await _stats(state), state.metrics, request.headers.get("accept", "")
    )
    return Response(body, headers={"content-type": content_type})


@router.get("/load", response_model=None)
async def load(request: Request) -> Response:
    """How busy the server is; `server_load` as vLLM has it, the rest for the status page."""
    state = state_of(request)
    stats = await _stats(state)
    busy = {
        "server_load": state.num_in_flight,
        "model": state.model_name,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "kv_cache_usage": stats.num_held_blocks / max(stats.num_blocks, 1),
        "prefix_hit_rate": stats.prefix_hits / max(stats.prefix_queries, 1),
        "prompt_tokens": stats.prompt_tokens_computed,
        "generated_tokens": stats.generated_tokens,
        "draft_acceptance_rate": stats.num_accepted_tokens / max(stats.num_draft_tokens, 1),
        "speculation_gain_ratio": stats.speculation_gain_ratio,
        "slo": None if stats.slo is None else asdict(stats.slo),
        "is_ready": state.is_ready,
    }
    return json_response(busy)


@router.get("/server_info", response_model=None)
async def server_info(request: Request) -> Response:
    """The model's limits, the server's configuration (without its keys) and its hard limits."""
    state = state_of(request)
    info = state.client.info
    hidden = {"api_keys", "ssl_keyfile", "ssl_certfile", "uds"}
    reply = {
        "version": __version__,
        "model": {
            "names": list(info.served_model_names),
            "max_model_len": info.max_model_len,
            "vocab_size": info.vocab_size,
            "num_blocks": info.num_blocks,
            "block_size": info.block_size,
            "default_sampling": dict(info.default_sampling),
        },
        "server": {name: value for name, value in asdict(state.config).items() if name not in hidden},
        "limits": {name.lower(): value for name, value in vars(limits).items() if name.isupper()},
    }
    return json_response(reply)


@router.post("/reset_prefix_cache", response_model=None)
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes; false when blocks are in use."""
    return json_response({"success": await state_of(request).client.reset_prefix_cache()})


@router.get("/", response_model=None)
async def status_page() -> Response:
    """A page for people."""
    page = resources.files("threefold.server").joinpath("status.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"content-security-policy": _PAGE_POLICY})


async def docs_page(request: Request) -> Response:
    """The API for people."""
    return HTMLResponse(api_page(request.app.openapi()), headers={"content-security-policy": POLICY})


async def _stats(state: ServerState) -> EngineStats:
    """The engine's figures; while it is dead or stuck, zeros: those of this side are worth having still."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await state.client.stats()
    except (EngineDeadError, TimeoutError):
        return EngineStats(num_blocks=state.client.info.num_blocks)
