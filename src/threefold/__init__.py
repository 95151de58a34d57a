"""Threefold: a serving engine for language models that says which lever pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threefold.request import SamplingParams

if TYPE_CHECKING:
    from threefold.engine.llm import LLM
    from threefold.engine.together import CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the engine (and torch with it) only for those who use it: the control half and the CLI stay light."""
    if name in {"LLM", "CompletionOutput", "RequestOutput"}:
        from threefold.engine import llm, together

        return getattr(llm if name == "LLM" else together, name)
    raise AttributeError(f"module 'threefold' has no attribute {name!r}")
