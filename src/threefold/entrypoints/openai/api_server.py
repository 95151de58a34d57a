"""`python -m threefold.entrypoints.openai.api_server --model M …`: what vLLM's users type, for `threefold serve`.

Takes the same flags and does nothing of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from threefold.cli import main


def serve(flags: Sequence[str]) -> int:
    """Serve with these flags; the process's exit code."""
    return main(["serve", *flags])


if __name__ == "__main__":
    raise SystemExit(serve(sys.argv[1:]))
