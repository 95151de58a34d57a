"""The API's description (OpenAPI): bodies are read by hand, so their schemas are put in by hand."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from threefold.server import schema

_BODIES: tuple[type[BaseModel], ...] = (
    schema.ChatCompletionRequest,
    schema.CompletionRequest,
    schema.TokenizeTextRequest,
    schema.TokenizeChatRequest,
    schema.DetokenizeRequest,
)
_REFERENCE = "#/components/schemas/{model}"


def json_body(*models: type[BaseModel]) -> dict[str, Any]:
    """The part of a route's description that says its body is one of these models."""
    choices = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    body = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def add_body_schemas(description: dict[str, Any]) -> dict[str, Any]:
    """Put the models that json_body refers to into an OpenAPI description."""
    _, definitions = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REFERENCE)
    description.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    return description
