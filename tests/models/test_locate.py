"""What the operator typed: folders, files, hub ids, nothing at all, and what is none of these."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from threefold.errors import ModelLoadError
from threefold.models import locate
from threefold.models.locate import locate_model


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def test_folders_and_files(tmp_path: Path) -> None:
    touch(tmp_path / "hf" / "config.json", tmp_path / "one" / "model.gguf")
    assert locate_model(str(tmp_path / "hf")) == tmp_path / "hf"
    assert locate_model(str(tmp_path / "one")) == tmp_path / "one" / "model.gguf"
    assert locate_model(str(tmp_path / "one" / "model.gguf")) == tmp_path / "one" / "model.gguf"


def test_nothing_typed_is_the_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "fetch_default_model", lambda: tmp_path / "default.gguf")
    assert locate_model(None) == tmp_path / "default.gguf"


def test_finding_a_model_and_its_tokenizer_needs_no_torch() -> None:
    code = "import sys, threefold.models.locate, threefold.models.gguf_file, threefold.text.tokenizer; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_no_model_says_what_would_be(tmp_path: Path) -> None:
    touch(tmp_path / "two" / "a.gguf", tmp_path / "two" / "b.gguf", tmp_path / "empty" / "readme.md")
    touch(tmp_path / "split" / "m-00001-of-00002.gguf", tmp_path / "split" / "m-00002-of-00002.gguf")
    touch(tmp_path / "hf" / "config.json", tmp_path / "weights.bin")
    for given, message in {
        "two": r"holds 2 GGUF files \(a\.gguf, b\.gguf\); name the one to load",
        "empty": r"holds neither config\.json nor a \.gguf file",
        "split": "split GGUF files are not read; merge them",
        "hf/config.json": f"give the folder that holds it, {tmp_path / 'hf'}",
        "weights.bin": r"not a model: expected a folder with config\.json or a \.gguf file",
        "missing.gguf": "no such file or folder; give a folder",
    }.items():
        with pytest.raises(ModelLoadError, match=message):
            locate_model(str(tmp_path / given))


def test_a_hub_id_is_fetched_by_the_hubs_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    touch(tmp_path / "config.json")
    asked: dict[str, Any] = {}

    def snapshot(model: str, **options: Any) -> str:
        asked.update(model=model, **options)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert locate_model("Org/Model-1.5B", "v2") == tmp_path
    assert asked["model"] == "Org/Model-1.5B"
    assert asked["revision"] == "v2"
    assert not any("bin" in pattern or "pt" in pattern for pattern in asked["allow_patterns"])


@pytest.mark.parametrize("name", ["LocalEntryNotFoundError", "RepositoryNotFoundError", "GatedRepoError", "OSError"])
def test_each_failure_of_the_hub_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(404, request=httpx.Request("GET", "http://hub"))

    def fail(*_: Any, **__: Any) -> None:
        if name in ("RepositoryNotFoundError", "GatedRepoError"):
            raise getattr(errors, name)("several\nlines", response=response)
        raise OSError("offline") if name == "OSError" else errors.LocalEntryNotFoundError("several\nlines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    messages = {"RepositoryNotFoundError": "nor a model on the hub", "GatedRepoError": "wants its terms accepted"}
    expected = messages.get(name, r"the hub cannot be reached; give the path of a folder with config\.json")
    with pytest.raises(ModelLoadError, match=expected) as caught:
        locate_model("org/model")
    assert "\n" not in str(caught.value)


def test_without_the_hubs_library_the_folder_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelLoadError, match=r"pip install huggingface_hub`, or give the path of a folder"):
        locate_model("org/model")
