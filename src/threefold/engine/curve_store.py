"""Keeps measured cost curves on disk, one file for each combination of what a step's time depends on.

A file that cannot be read, or is not a curve, counts as none: the engine measures again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from threefold.config import cache_folder
from threefold.cost import CostCurve
from threefold.errors import ConfigError


class CurveStore:
    """The place of one curve.

    Args:
        key: all that the curve depends on: model, device, versions, limits.

    Attributes:
        path: its file.
    """

    def __init__(self, key: dict[str, object]) -> None:
        self._key = {name: str(value) for name, value in key.items()}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()[:16]
        self.path = cache_folder() / "curves" / f"{digest}.json"

    def load(self) -> CostCurve | None:
        """The stored curve, None when there is none that can be used."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return CostCurve.from_dict(data["curve"])
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return None

    def save(self, curve: CostCurve) -> None:
        """Store it; a cache folder that cannot be written only costs a measurement at the next start."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": self._key, "curve": curve.to_dict()}, file, indent=1)
            Path(name).replace(self.path)
