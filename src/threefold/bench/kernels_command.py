"""What the kernel benches share as commands: one card, readings shown as they come, a JSON file where asked.

Knows no kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from threefold.bench.report import write_json
from threefold.errors import OperatorError
from threefold.runner.device import CudaDevice, open_device


def run_kernels(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, CudaDevice], dict[str, Any]]
) -> None:
    """Read the words, measure on a card, write where asked; what cannot hold is one line and exit code 1.

    Args:
        parser: of the bench's own words; --json is added.
        measure: gives the readings.
    """
    parser.add_argument("--json", type=Path, help="where the readings go, as JSON")
    asked = parser.parse_args()
    try:
        open_device("cuda")  # says in one line what is missing
        device = CudaDevice()
        with torch.inference_mode():
            readings = measure(asked, device)
        if asked.json is not None:
            write_json(asked.json, {"device": device.name, "torch": str(torch.__version__), **readings})
    except OperatorError as error:
        parser.exit(1, f"{error}\n")
