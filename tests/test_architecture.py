"""The house keeps its shape: layers, torch-free rooms, documented configs, banned calls, a true map."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "threefold"

VOCABULARY = {
    "errors",
    "config",
    "request",
    "step",
    "cost",
    "cost_draft",
    "cost_fit",
    "cost_linear",
    "kalman",
    "least_squares",
    "metrics",
}
# room (or single file) -> what it may import besides itself and layer 0; the table of the design, section 3
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in VOCABULARY},
    "cache": set(),
    "draft": set(),
    "text": set(),
    "schedule": {"cache", "draft.controller"},
    "kernels": {"parallel"},
    "parallel": {"kernels"},
    "layers": {"kernels", "parallel"},
    "sample": {"kernels", "parallel"},
    "models": {"layers", "parallel"},
    "runner": {"models", "layers", "sample", "kernels", "parallel", "draft.drafter"},
    "draft.draft_model": {"runner", "draft.drafter", "models", "layers"},
    "draft.draft_behind": {"runner", "draft.drafter", "draft.draft_model"},
    "engine.core": {"engine.price", "schedule"},
    "engine.price": set(),
    "engine.resolve": set(),
    "engine.curve_store": set(),
    "engine.start_clock": {"engine.resolve"},
    "engine.outputs": set(),
    "engine.wire": {"engine.outputs"},
    "engine.loop": {"engine.core", "engine.outputs", "engine.wire"},
    "engine.client": {
        "engine.gate",
        "engine.live",
        "engine.outputs",
        "engine.process",
        "engine.stream",
        "engine.wire",
        "text",
    },
    "engine.answer": {"engine.outputs", "text"},
    "engine.stream": {"engine.answer", "engine.outputs"},
    "engine.gate": set(),
    "engine.live": {"engine.answer", "engine.outputs", "engine.stream", "engine.wire", "text"},
    "engine.process": {"engine.wire"},
    "engine.options": {"flags"},
    "engine.together": {"engine.answer", "engine.core", "engine.outputs", "text"},
    "engine.llm": {"engine.build", "engine.options", "engine.together", "text"},
    "engine.build": {"*"},
    "engine.ahead": {"*"},
    "engine.loops_ahead": {"*"},
    "engine.draft_pair": {"*"},
    "engine.opened": {"*"},
    "engine.fit": {"*"},
    "engine.card": {"*"},
    "engine.describe": {"*"},
    "engine.loaded": {"*"},
    "engine.step_costs": {"*"},
    "engine.targets": {"*"},
    "server": {"engine.client", "engine.outputs", "text"},
    "testing": {"engine.core", "schedule", "cache", "draft.controller"},
    "bench": {"*"},
    "advise": {"*"},
    "quality": {"*"},
    "quantize": {"*"},
    "report": {"advise", "bench", "flags"},
    "flags": set(),
    "cli": {"*"},
    "entrypoints": {"*"},
    "__main__": {"cli"},
    "__init__": {"engine.llm", "engine.together"},
}
NOBODY_IMPORTS = {"bench", "advise", "quality", "quantize", "report", "cli", "entrypoints"}
TORCH_ROOMS = (
    "kernels",
    "parallel",
    "layers",
    "sample",
    "models",
    "runner",
    "draft.draft_model",
    "draft.draft_behind",
    "engine.build",
    "engine.ahead",
    "engine.loops_ahead",
    "engine.draft_pair",
    "engine.opened",
    "engine.fit",
    "engine.card",
    "engine.describe",
    "engine.loaded",
    "engine.step_costs",
    "engine.targets",
    "bench",
    "quality",
    "quantize",
)
COMPILED = (
    "draft.acceptance",
    "draft.admit",
    "draft.curve",
    "draft.match",
    "draft.order",
    "draft.texts",
    "draft.outlook",
    "draft.yields",
    "kalman",
)
"""Rooms without tensors that have a hot loop compiled."""
CUDA_FILES = ("runner/device.py", "runner/graphs.py", "kernels/triton/")


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found.append((name.removesuffix(".__init__"), path))
    return found


def imports_of(path: Path) -> set[str]:
    """Every module imported anywhere in the file: at the top, inside functions, for typing only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def rule_for(module: str) -> tuple[str, set[str]]:
    """The longest entry of the table that covers the module."""
    parts = module.split(".")
    if parts == ["engine"]:  # its files each have a line of their own; the package itself imports nothing
        return module, set()
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        if key in MAY_IMPORT:
            return key, MAY_IMPORT[key]
    pytest.fail(f"{module} is in no room of the table")


def covers(allowed: str, target: str) -> bool:
    return target == allowed or target.startswith(allowed + ".")


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_follow_the_table(module: str, path: Path) -> None:
    own, allowed = rule_for(module)
    known = {name for name, _ in modules()}
    for imported in imports_of(path):
        if not imported.startswith("threefold."):
            continue
        target = imported.removeprefix("threefold.")
        if target not in known:
            continue  # a name inside a module, whose module is listed too
        is_package = (SOURCE / Path(*target.split(".")) / "__init__.py").exists()
        if is_package and any(other.startswith(target + ".") for other in known):
            continue  # `from threefold.room import file` also lists `threefold.room`
        fine = (
            target.split(".")[0] in VOCABULARY
            or covers(own.split(".")[0] if "." not in own or own.startswith("draft") else own, target)
            or "*" in allowed
            or any(covers(name, target) for name in allowed)
        )
        assert fine, f"{module} may not import threefold.{target}"
        if own not in NOBODY_IMPORTS and "*" not in allowed and own != "__main__":
            assert target.split(".")[0] not in NOBODY_IMPORTS, f"nobody imports {target}, but {module} does"


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_torch_stays_in_its_rooms(module: str, path: Path) -> None:
    if any(covers(room, module) for room in TORCH_ROOMS):
        return
    banned = {"torch", "triton"} if module in COMPILED else {"torch", "numba", "triton"}
    assert not {name for name in imports_of(path) if name.split(".")[0] in banned}


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_banned_calls(module: str, path: Path) -> None:
    text = path.read_text()
    relative = path.relative_to(SOURCE).as_posix()
    if not relative.startswith(CUDA_FILES):
        assert "torch.cuda" not in text, "torch.cuda is named only where devices are hidden"
    if relative != "config.py":
        assert not re.search(r"os\.environ|getenv", text), "the environment is read only in config.py"
    for word in ("pickle", "marshal", "torch.load(", "recv_pyobj", "send_pyobj", "trust_remote_code=True"):
        code = "\n".join(line for line in text.splitlines() if "never" not in line and "no pickle" not in line)
        assert word not in code, f"{word} is banned"


def test_no_grab_bag_files() -> None:
    assert not [path for path in SOURCE.rglob("*.py") if path.stem in {"utils", "helpers", "common", "misc"}]


def test_every_config_field_has_a_default_and_a_line_of_doc() -> None:
    tree = ast.parse((SOURCE / "config.py").read_text())
    for config in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        assert ast.get_docstring(config), config.name
        for field, after in zip(config.body, [*config.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                where = f"{config.name}.{field.target.id}"
                assert field.value is not None, f"{where} has no default"
                is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert is_doc, f"{where} has no doc"


def test_public_names() -> None:
    import threefold

    assert threefold.__all__ == ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]
    assert all(hasattr(threefold, name) for name in threefold.__all__)


def test_the_map_names_every_file_once() -> None:
    listed = re.findall(r"^\| `([^`]+\.py)` \|", (ROOT / "docs" / "map.md").read_text(), flags=re.MULTILINE)
    there = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" or path.parent == SOURCE
    ]
    assert sorted(listed) == sorted(there)
