"""The house: data flows one way, and the picture in docs/architecture.md is the code's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
#: Each folder of a package asks those before it, and none behind it. The runtime is one folder.
FLOWS: dict[str, tuple[str, ...]] = {
    "dp2ddp": (
        "source",
        "project",
        "notebook",
        "rewrite",
        "analysis",
        "rules",
        "command",
        "page",
        "convert",
        "verify",
    ),
    "dp2ddp_runtime": (),
}
PACKAGES = {"dp2ddp": ROOT / "dp2ddp", "dp2ddp_runtime": ROOT / "runtime/dp2ddp_runtime"}
EVERY_FILE = "each file of the runtime:\n\n"


@cache
def _modules(package: str) -> dict[str, Path]:
    root = PACKAGES[package].parent
    paths = {path: path.relative_to(root).with_suffix("") for path in PACKAGES[package].rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in paths.items()}


@cache
def _imports(package: str) -> dict[str, set[str]]:
    """What each module imports when it runs: of its package by full name, of others the top package."""
    modules = _modules(package)
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        base = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = {target for node in _run(ast.parse(path.read_text("utf-8"))) for target in _targets(node, base)}
        found[name] = {_known(target, modules) for target in found[name]} - {name}
    return found


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module, but for what only type checkers see."""
    yield node
    typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    for child in [] if typing else ast.iter_child_nodes(node):
        yield from _run(child)


def _targets(node: ast.AST, base: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        up = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*up, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _known(target: str, modules: dict[str, Path]) -> str:
    if target in modules:
        return target
    parent = target.rpartition(".")[0]
    return parent if parent in modules else target.split(".")[0]


def _folder(module: str) -> str:
    package, *parts = module.split(".")
    return parts[0] if parts and parts[0] in FLOWS.get(package, ()) else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_between_files(package: str) -> None:
    left = {name: {each for each in found if each in _modules(package)} for name, found in _imports(package).items()}
    while True:
        free = {name for name, found in left.items() if not found & left.keys()}
        if not free:
            break
        left = {name: found for name, found in left.items() if name not in free}
    assert not left


def test_folders_ask_only_those_before_them() -> None:
    flow = ["", *FLOWS["dp2ddp"]]  # what lies outside of folders
    wrong = [
        f"{module} -> {target}"
        for module, found in _imports("dp2ddp").items()
        for target in found & _modules("dp2ddp").keys()
        if _folder(module) and target not in ("dp2ddp", "dp2ddp_runtime.version")
        if flow.index(_folder(target)) > flow.index(_folder(module))
    ]
    assert not wrong


def test_the_runtime_imports_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", "numpy", "typing_extensions", "dp2ddp_runtime", *sys.stdlib_module_names}
    assert {each.split(".")[0] for found in _imports("dp2ddp_runtime").values() for each in found} <= allowed


def _picture() -> str:
    """The flow between folders, without the arrows that others imply."""
    flow = FLOWS["dp2ddp"]
    asked: dict[str, set[str]] = {folder: set() for folder in flow}
    for module, found in _imports("dp2ddp").items():
        if _folder(module):
            asked[_folder(module)] |= {_folder(target) for target in found} - {_folder(module), ""}
    implied = {folder: {far for near in found for far in _reach(asked, near)} for folder, found in asked.items()}
    arrows = [f"    {near} --> {folder}" for folder in flow for near in flow if near in asked[folder] - implied[folder]]
    return "\n".join(["```mermaid", "flowchart LR", *arrows, "```"])


def _reach(asked: dict[str, set[str]], folder: str) -> set[str]:
    return asked[folder].union(*(_reach(asked, each) for each in asked[folder]))


def test_the_picture_is_the_code_s() -> None:
    assert _picture() in PAGE, f"docs/architecture.md should have:\n{_picture()}"


def _first_line(path: Path) -> str:
    first = path.read_text("utf-8").splitlines()[0]
    assert re.fullmatch(r'""".+[.?](""")?', first), f"{path}: its first line should be a sentence: {first}"
    return first.strip('"').replace("``", "`")


def _every_file() -> str:
    """What each folder of the codemod, and each file of the runtime, says in its first line."""
    first = {path: _first_line(path) for package in PACKAGES for path in _modules(package).values()}
    folders = [PACKAGES["dp2ddp"] / folder for folder in FLOWS["dp2ddp"]]
    lines = [f"- `dp2ddp/{folder.name}/`: {first[folder / '__init__.py']}" for folder in folders]
    runtime = sorted(PACKAGES["dp2ddp_runtime"].glob("[!_]*.py"))
    return "\n".join([*lines, *(f"- `{path.name}`: {first[path]}" for path in runtime)])


def test_the_page_has_the_folders_and_the_runtime_s_files() -> None:
    assert PAGE.partition(EVERY_FILE)[2] == f"{_every_file()}\n", "python tests/test_architecture.py writes it"


if __name__ == "__main__":
    page = f"{PAGE.partition(EVERY_FILE)[0]}{EVERY_FILE}{_every_file()}\n"
    (ROOT / "docs/architecture.md").write_text(page, "utf-8")
