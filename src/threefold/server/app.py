"""The application: routes, error forms, guard. Everything it needs is passed in; nothing is started here."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from threefold import __version__
from threefold.config import ServerConfig
from threefold.errors import CallerError, InvalidRequestError, NotFoundError, ThreefoldError
from threefold.server import operations, routes
from threefold.server.call import Client
from threefold.server.chat import ChatPrompts
from threefold.server.description import add_body_schemas
from threefold.server.error_responses import reply_to
from threefold.server.guard import Guard
from threefold.server.prompts import PromptTokenizer
from threefold.server.record import RequestMetrics
from threefold.server.recording import NoRecorder, Recorder
from threefold.server.state import ServerState, state_of
from threefold.server.template import TemplateRenderer

MAX_PATH_CHARS = 100
"""Of a path that is not there, shown in the answer."""
_TITLE = "Threefold"
_logger = logging.getLogger(__name__)


class MethodError(CallerError):
    """The path exists, but not for this method."""

    status = 405


def create_app(
    client: Client, config: ServerConfig, *, chat_template: str | None = None, recorder: Recorder | None = None
) -> FastAPI:
    """The HTTP application in front of a running engine.

    Args:
        client: the engine's client.
        config: the server's configuration.
        chat_template: Jinja text in place of the model's own template.
        recorder: writes down what was asked and answered; None = nobody does.
    """
    app = FastAPI(
        title=_TITLE,
        version=__version__,
        root_path=config.root_path,
        redirect_slashes=False,
        openapi_url="/openapi.json" if config.enable_docs else None,
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.server = _state(client, config, chat_template, recorder)
    app.include_router(routes.router)
    app.include_router(operations.router)
    if config.enable_docs:
        app.add_api_route("/docs", operations.docs_page, include_in_schema=False, response_model=None)
    for kind in (ThreefoldError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(Guard, api_keys=config.api_keys, root_path=config.root_path)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.allowed_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.openapi = _describer(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend the description
    return app


def _state(client: Client, config: ServerConfig, chat_template: str | None, recorder: Recorder | None) -> ServerState:
    source = chat_template or client.tokenizer.chat_template
    renderer = TemplateRenderer(source, client.tokenizer.special_tokens) if source else None
    prompts = PromptTokenizer(client.tokenizer, client.info.vocab_size)
    return ServerState(
        client=client,
        config=config,
        prompts=prompts,
        chats=ChatPrompts(prompts, renderer),
        renderer=renderer,
        metrics=RequestMetrics(client.info.max_model_len),
        recorder=recorder or NoRecorder(),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    if state.renderer is not None:
        try:
            await state.renderer.warm_up()
        except InvalidRequestError as error:  # completions still work; each chat is told the same
            _logger.warning("%s", error)
    yield
    if state.renderer is not None:
        await state.renderer.close()


def _describer(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = add_body_schemas(description)
        return app.openapi_schema

    return describe


async def _on_error(request: Request, error: Exception) -> Response:
    reply = reply_to(_translated(error, request.scope["path"]), state_of(request).config.overload_status)
    response = Response(reply.body, reply.status, media_type="application/json")
    response.raw_headers += reply.headers
    return response


def _translated(error: Exception, path: str) -> Exception:
    """The web framework's own errors as ours."""
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFoundError(
                f"no such path: {path!r:.{MAX_PATH_CHARS}}; there are /v1/chat/completions, /v1/completions, "
                "/v1/models, /tokenize and /detokenize",
                code="not_found",
            )
        if error.status_code == 405:
            return MethodError("this path does not take this method")
        return InvalidRequestError("the request cannot be read")
    if isinstance(error, RequestValidationError):
        return InvalidRequestError("the path or query is malformed")
    return error
