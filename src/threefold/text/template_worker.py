"""Renders chat templates, alone in a process that can be killed: a template is code that came with a model.

Run as a program (`python -P template_worker.py`), it reads frames on stdin and answers each on stdout. A frame is four
bytes of length, big endian, and JSON. The first frame brings the template, each later one a chat. Knows nothing about
engines, tokenizers or HTTP; imports only what rendering needs, so that a killed worker is replaced in a moment.

The environment is that of Hugging Face's `apply_chat_template`: Jinja's immutable sandbox, trimmed blocks, loop
controls, `raise_exception`, `strftime_now`, a `tojson` that does not escape for HTML, and the `generation` tag.
"""

from __future__ import annotations

import datetime
import json
import math
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH = struct.Struct(">I")
MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_MESSAGE_CHARS = 300
MAX_RENDERED_BYTES = 4 * 1024 * 1024
"""Longest prompt that a template may render."""
GRACE_S = 2


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering leaves them as they are."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's statements, without the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class OutputLimitError(Exception):
    """The template renders more than the limit."""


def environment() -> ImmutableSandboxedEnvironment:
    """The sandbox that templates run in."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def syntax_fault(source: str) -> str | None:
    """Why a text is no template, None where it is one; nothing of it is run."""
    try:
        environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None


class Template:
    """A compiled template and the names it reads.

    Raises:
        jinja2.TemplateError: the source is no valid template.
    """

    def __init__(self, source: str, constants: dict[str, str]) -> None:
        env = environment()
        self._variables = jinja2.meta.find_undeclared_variables(env.parse(source))
        self._template = env.from_string(source)
        self._constants = constants

    def render(self, chat: dict[str, Any], extra: dict[str, Any], max_bytes: int) -> str:
        """The prompt's text. `extra` holds the caller's variables; only those that the template reads are passed on.

        Raises:
            jinja2.TemplateError: by the template's own will, or its fault.
            OutputLimitError: more than max_bytes.
        """
        known = {name: value for name, value in extra.items() if name in self._variables}
        pieces = []
        num_bytes = 0
        for piece in self._template.generate(**known, **self._constants, **chat):
            num_bytes += len(piece.encode("utf-8", "replace"))
            if num_bytes > max_bytes:
                raise OutputLimitError(f"the chat template renders more than {max_bytes} bytes")
            pieces.append(piece)
        return "".join(pieces)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def read_frame(stream: BinaryIO) -> Any:
    """The next frame's value, None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return json.loads(stream.read(LENGTH.unpack(head)[0]))


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Write one frame."""
    body = json.dumps(value).encode()
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def _confine(timeout_s: float) -> None:
    """Orphaned or not, this process ends: it holds little memory, and the alarm kills what the parent could not."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes our stdin when it is done
    signal.alarm(math.ceil(timeout_s) + GRACE_S)


def refusal(error: Exception) -> str:
    """What the caller is told of a rendering that failed."""
    if isinstance(error, OutputLimitError):
        return str(error)
    return f"the chat template refuses this chat: {error}"[:MAX_MESSAGE_CHARS]


def _answer(template: Template, ask: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": template.render(ask["chat"], ask["extra"], ask["max_bytes"])}
    except Exception as error:  # noqa: BLE001  (a template can raise anything; the fault goes back to its request)
        return {"error": refusal(error)}


def main() -> None:
    """Serve until stdin ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    start = read_frame(source)
    if start is None:
        return
    _confine(start["timeout_s"])
    try:
        template = Template(start["source"], start["constants"])
    except Exception as error:  # noqa: BLE001  (any fault here is the template's; the parent reports it)
        write_frame(sink, {"error": f"the chat template is not valid: {error}"[:MAX_MESSAGE_CHARS]})
        return
    write_frame(sink, {})
    while True:
        signal.alarm(0)
        ask = read_frame(source)
        if ask is None:
            return
        signal.alarm(math.ceil(start["timeout_s"]) + GRACE_S)
        write_frame(sink, _answer(template, ask))


if __name__ == "__main__":
    main()
