"""The page at /docs: the API's paths and fields, made of its description (OpenAPI); no script, none from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Markup(
    ":root{color-scheme:light dark}"
    "body{margin:0 auto;padding:2rem 1.5rem;max-width:60rem;font:16px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.4rem}h2{font-size:1rem;margin:2rem 0 0;font-family:ui-monospace,monospace}p{margin:.3rem 0}"
    "td,th{padding:.1rem 1.5rem .1rem 0;text-align:left;vertical-align:top}th{font-weight:500}"
    "table{font-size:.9rem;border-collapse:collapse}"
)
_PAGE = Markup(
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
    "<meta name='viewport' content='width=device-width, initial-scale=1'><style>{style}</style></head><body>"
    "<h1>{title} {version}</h1><p>For tools: <a href='openapi.json'>openapi.json</a></p>{paths}<h1>Bodies</h1>{bodies}"
    "</body></html>"
)
_Schema = Mapping[str, Any]


def api_page(description: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description."""
    schemas: Mapping[str, _Schema] = description.get("components", {}).get("schemas", {})
    return _PAGE.format(
        title=description["info"]["title"],
        version=description["info"]["version"],
        style=_STYLE,
        paths=Markup("").join(_paths(description["paths"])),
        bodies=Markup("").join(_body(name, schema) for name, schema in schemas.items() if "properties" in schema),
    )


def _paths(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[Markup]:
    for path, methods in paths.items():
        for method, what in methods.items():
            yield Markup("<h2>{} {}</h2><p>{}</p>").format(method.upper(), path, what.get("description", ""))
            body = what.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body is not None:
                yield Markup("<p>Body: {}</p>").format(_kind(body))


def _body(name: str, schema: _Schema) -> Markup:
    needed = schema.get("required", ())
    rows = Markup("").join(
        Markup("<tr><th>{}</th><td>{}</td><td>{}</td></tr>").format(
            field, _kind(of), "needed" if field in needed else ""
        )
        for field, of in schema["properties"].items()
    )
    return Markup("<h2 id='{0}'>{0}</h2><p>{1}</p><table>{2}</table>").format(name, schema.get("description", ""), rows)


def _kind(schema: _Schema) -> Markup:
    """What a value may be, in words; models are links."""
    if "$ref" in schema:
        return Markup("<a href='#{0}'>{0}</a>").format(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        kinds = [_kind(choice) for choice in schema["anyOf"] if choice.get("type") != "null"]
        return Markup(" or ").join(kinds)
    if schema.get("type") == "array":
        return Markup("list of {}").format(_kind(schema.get("items", {})))
    return Markup("{}").format(schema.get("type", "anything"))
