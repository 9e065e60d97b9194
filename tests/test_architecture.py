"""The house: data flows one way, every file fits its idea, and the picture in docs/architecture.md is the code's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dp2ddp.analysis.facts import Facts
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.convert.plan import plan
from dp2ddp.rewrite.edits import AddImport, ReplaceExpr
from dp2ddp.rules import Options
from dp2ddp.source.program import parse

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
EVERY_FILE = "## Every file"
#: A file of the runtime is a whole idea, whatever that takes; the longest are to become shorter.
MOST_LINES = {"dp2ddp": 400, "dp2ddp_runtime": 575, "tests": 450}
MOST_AT_THE_TOP = 5


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


@pytest.mark.parametrize("folder", [*PACKAGES.values(), ROOT / "tests"], ids=lambda folder: folder.name)
def test_a_file_fits_its_idea(folder: Path) -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MOST_LINES[folder.name]} == {}


def test_the_way_in_is_short() -> None:
    assert len(list(PACKAGES["dp2ddp"].glob("*.py"))) <= MOST_AT_THE_TOP


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


def _every_file() -> str:
    """What the first line of each file, and of each folder's `__init__.py`, says that it is."""
    page: list[str] = []
    for package, root in PACKAGES.items():
        for path in sorted(_modules(package).values(), key=lambda path: _order(path.relative_to(root), package)):
            first = path.read_text("utf-8").splitlines()[0]
            assert re.fullmatch(r'""".+[.?](""")?', first), f"{path}: its first line should be a sentence: {first}"
            text = first.strip('"').replace("|", "\\|").replace("``", "`")
            if path.parent.name == "rules" and text.startswith("DDP"):
                continue  # docs/rules.md has it
            if path.name == "__init__.py":
                page.append(f"\n### `{path.parent.relative_to(ROOT)}/`\n\n{text}\n")
                page += ["| file | what it is |", "|---|---|"] if len(list(path.parent.glob("*.py"))) > 1 else []
            else:
                page.append(f"| `{path.name}` | {text} |")
    return "\n".join(page).strip()


def _order(path: Path, package: str) -> tuple[int, tuple[str, ...], bool, str]:
    """Folders as data flows through them, in each first what it is."""
    flow = FLOWS[package]
    place = flow.index(path.parts[0]) if path.parts[0] in flow else -1
    return place, path.parent.parts, path.name != "__init__.py", path.name


def test_every_file_is_on_the_page_as_it_calls_itself() -> None:
    assert PAGE.partition(EVERY_FILE)[2] == f"\n\n{_every_file()}\n", "python tests/test_architecture.py writes it"


def _walk(text: str) -> Iterator[str]:
    """A script's way through the stages, with the values that it really has there."""
    source = parse(text, "train.py")
    facts = Facts(source)
    (wrap,), (loader,) = facts.wraps.models, facts.loaders.calls
    yield f"source     {len(source.files)} file, {len(source.nodes)} nodes"
    yield f"names      {source.segment(wrap.func)} is {facts.qualified(wrap.func)}"
    yield f"facts      wraps.models: line {wrap.lineno}; wraps.targets: {', '.join(sorted(facts.wraps.targets))}"
    yield f"           loaders.calls: line {loader.lineno}"
    yield f"           entries: {len(facts.entries)} file; blockers: {facts.blockers}"
    for edit in plan(source, Options()).edits:
        if isinstance(edit, AddImport):
            continue
        what = edit.template if isinstance(edit, ReplaceExpr) else "; ".join(filter(None, getattr(edit, "lines", ())))
        (line, column), _ = edit.span
        yield f"plan       {edit.rule} {line}:{column} {type(edit).__name__} {what}".rstrip()


def test_the_example_goes_through_the_stages_as_told() -> None:
    before, after = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]
    stages = "```text\n" + "\n".join(_walk(before)) + "\n```"
    assert stages in PAGE, f"docs/architecture.md should have:\n{stages}"
    assert convert_source(before, "train.py", Options()).new_text == after


if __name__ == "__main__":
    page = f"{PAGE.partition(EVERY_FILE)[0]}{EVERY_FILE}\n\n{_every_file()}\n"
    (ROOT / "docs/architecture.md").write_text(page, "utf-8")
