"""From what the operator typed to a folder or GGUF file on this machine.

Knows nothing about what is inside. A hub id is fetched through huggingface_hub where that is installed, which keeps its
own cache. Nothing typed is also a model: the default one.
"""

from __future__ import annotations

import re
from pathlib import Path

from threefold.errors import ModelLoadError
from threefold.models.fetch import fetch_default_model

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_OTHERS = ["consolidated*", "original/*", "onnx/*"]  # the same weights once more, in other forms
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def locate_model(model: str | None, revision: str | None = None) -> Path:
    """The folder (with config.json) or GGUF file of a model.

    Args:
        model: folder, GGUF file, folder with one GGUF file, hub id, or None for the default model.
        revision: of a hub id; None = the newest.

    Raises:
        ModelLoadError: there is no such thing, or it is no model.
        DownloadError: the default model is not here and cannot be fetched.
    """
    if model is None:
        return fetch_default_model()
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return _as_file(path)
    if _HUB_ID.fullmatch(model):
        return _in_folder(_from_hub(model, revision))
    raise ModelLoadError(f"{model}: no such file or folder; give a folder with config.json, a .gguf file or a hub id")


def _in_folder(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return _as_file(files[0])
    if files and _SPLIT_GGUF.search(files[0].name):
        return _as_file(files[0])
    if files:
        names = ", ".join(file.name for file in files[:4])
        raise ModelLoadError(f"{folder}: holds {len(files)} GGUF files ({names}); name the one to load")
    raise ModelLoadError(f"{folder}: holds neither config.json nor a .gguf file, so it is no model folder")


def _as_file(path: Path) -> Path:
    if _SPLIT_GGUF.search(path.name):
        raise ModelLoadError(
            f"{path}: split GGUF files are not read; merge them into one first (llama-gguf-split --merge)"
        )
    if path.suffix == ".gguf":
        return path
    if path.suffix in (".json", ".safetensors"):
        raise ModelLoadError(f"{path}: give the folder that holds it, {path.parent}")
    raise ModelLoadError(f"{path}: not a model: expected a folder with config.json or a .gguf file")


def _from_hub(model: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ModelLoadError(
            f"{model}: no such folder here; loading by hub id needs `pip install huggingface_hub`, "
            "or give the path of a folder with config.json and safetensors"
        ) from error
    try:
        # Without a network this returns the copy in the hub's own cache, when there is one.
        folder = snapshot_download(model, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_OTHERS)
        return Path(folder)
    except GatedRepoError as error:
        raise ModelLoadError(f"{model}: the hub wants its terms accepted and a token (`hf auth login`)") from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"{model}: the hub has no revision {revision!r} of it") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelLoadError(
            f"{model}: neither a folder here nor a model on the hub (private ones need a token)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelLoadError(
            f"{model}: no such folder here, not in the hub's cache, and the hub cannot be reached; "
            "give the path of a folder with config.json and safetensors"
        ) from error
