"""What is read from the environment, and what the engine process gets of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from threefold.config import api_keys_from_environment, cache_folder, engine_environment


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "THREEFOLD_CACHE",
        "XDG_CACHE_HOME",
        "THREEFOLD_API_KEY",
        "VLLM_API_KEY",
        "OMP_WAIT_POLICY",
        "GOMP_SPINCOUNT",
    ):
        monkeypatch.delenv(name, raising=False)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path.home() / ".cache" / "threefold" == cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert Path("/x/threefold") == cache_folder()
    monkeypatch.setenv("THREEFOLD_CACHE", "/y")
    assert Path("/y") == cache_folder()


def test_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert () == api_keys_from_environment()
    monkeypatch.setenv("VLLM_API_KEY", "a, b,,")
    assert ("a", "b") == api_keys_from_environment()
    monkeypatch.setenv("THREEFOLD_API_KEY", "c")
    assert ("c",) == api_keys_from_environment()


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_spinning_of_the_engines_threads(
    given: dict[str, str], spin_count: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    assert spin_count == engine_environment().get("GOMP_SPINCOUNT")
    assert given.items() <= engine_environment().items()
