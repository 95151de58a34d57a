"""What a model can be quantised from, and where the result may go: all that is refused before any work.

Knows file names and sizes; no weight is read here.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from threefold.config import ModelConfig
from threefold.errors import ConfigError
from threefold.models.checkpoint import DTYPES, Checkpoint, open_checkpoint
from threefold.models.fields import read_json_object
from threefold.models.locate import locate_model
from threefold.models.shapes import expected_shapes

PRODUCT = re.compile(r"model\.layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight")
"""Weights that are quantised: all products but the output head."""
GROUP_SIZES = (128, 64, 32)
"""Inputs that share a 4-bit scale, the best first."""
_BYTES = {"fp8": 1.0, "awq": 0.5}
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_NAMES = ("LICENSE", "NOTICE")
_OWN = ("config.json", "model.safetensors.index.json")
_MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be quantised."""

    name: str
    """As the operator called it."""
    folder: Path
    checkpoint: Checkpoint

    def products(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what is quantised."""
        return {name: shape for name, shape in self._shapes().items() if PRODUCT.fullmatch(name)}

    def result_bytes(self, scheme: str) -> int:
        """About what the result takes: the products shrink, the rest stays."""
        plain = DTYPES[self.checkpoint.spec.dtype].itemsize
        quantised = sum(math.prod(shape) for shape in self.products().values())
        rest = sum(math.prod(shape) for shape in self._shapes().values()) - quantised
        scales = quantised / GROUP_SIZES[-1] * 4
        return int(_MARGIN * (rest * plain + quantised * _BYTES[scheme] + scales))

    def group_size(self) -> int:
        """Inputs that share a 4-bit scale: the largest of GROUP_SIZES that divides every product.

        Raises:
            ConfigError: none does.
        """
        widths = {shape[1] for shape in self.products().values()}
        for size in GROUP_SIZES:
            if not any(width % size for width in widths):
                return size
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise ConfigError(
            f"{self.name}: its products read {', '.join(map(str, sorted(widths)))} inputs, which groups of {sizes} do "
            "not divide, so 4-bit weights cannot be written; use --scheme fp8"
        )

    def copy_companions(self, to: Path) -> None:
        """Copy tokenizer, templates, sampling defaults and licence."""
        for path in sorted(self.folder.iterdir()):
            is_wanted = path.suffix in _COMPANIONS or path.stem.upper() in _NAMES
            if path.is_file() and is_wanted and path.name not in _OWN and not (to / path.name).exists():
                shutil.copyfile(path, to / path.name)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return expected_shapes(self.checkpoint.spec)


def open_source(model: ModelConfig) -> Source:
    """Find a model and refuse what cannot be quantised.

    Raises:
        ConfigError: it is a GGUF file, or quantised already.
        OperatorError: it cannot be opened.
    """
    folder = locate_model(model.model, model.revision)
    name = model.model or folder.name
    if folder.is_file():
        raise ConfigError(
            f"{name} is a GGUF file, which has a quantisation of its own and is served as it is; quantize wants the "
            "model's folder of safetensors"
        )
    config = read_json_object(folder / "config.json")
    known = config.get("quantization_config") or config.get("compression_config")
    if known:
        method = known.get("quant_method", "some scheme") if isinstance(known, dict) else "some scheme"
        raise ConfigError(
            f"{name} is quantised already, by {method}; quantize wants the unquantised model it was made from"
        )
    return Source(name, folder, open_checkpoint(folder))


def check_output(output: Path, needed_bytes: int) -> None:
    """Refuse a folder that holds something, or a disk that holds too much.

    Raises:
        ConfigError: one line that says what is in the way.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"-o {output}: is a file; give a new or empty folder")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"-o {output}: holds files already; give a new or empty folder")
    there = output.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed_bytes > free:
        raise ConfigError(
            f"-o {output}: the result takes about {needed_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free there"
        )
