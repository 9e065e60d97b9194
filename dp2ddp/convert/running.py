"""How to run what was converted."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from dp2ddp.notebook.notebook import is_notebook
from dp2ddp.rewrite.edits import Edit, InsertBefore
from dp2ddp.rules.launch import NARROWED
from dp2ddp.source import syntax

if TYPE_CHECKING:
    from dp2ddp.convert.reporting import File, Report

#: So many scripts are named that start in the same way.
_FEW = 4
#: What a folder to write to may be called.
_FOLDER = "converted/"


class Step(NamedTuple):
    """One way to run what was converted: a command, as typed into a shell, and what it does; either may be empty."""

    command: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.command}   # {self.what}" if self.command and self.what else self.command or self.what


class Starts(Enum):
    """How many processes a converted script starts."""

    VISIBLE = "one process on each visible GPU of this machine"
    GIVEN = "one process on each GPU of its device_ids"
    ASKED = "one process on each GPU that its ddp.setup() is given, as its arguments decide"
    NARROWED = "one process on each GPU that it makes visible"
    BESIDE = "its DataParallel branch, one process on each GPU; its own distributed training starts as before"


def starts(edits: Iterable[Edit]) -> Starts | None:
    """What the edits that put `ddp.setup(...)` into scripts say; None where there are none."""
    found = [edit for edit in edits if isinstance(edit, InsertBefore)]
    lines = " ".join(line for edit in found for line in edit.lines)
    if "beside_ddp=True" in lines:
        return Starts.BESIDE
    if "ddp.setup(device_ids=" in lines:
        return Starts.ASKED if re.search(r"device_ids=[^)]*( if | or None)", lines) else Starts.GIVEN
    if any(edit.reason.startswith(NARROWED) for edit in found):
        return Starts.NARROWED
    return Starts.VISIBLE if "ddp.setup(" in lines else None


# By `torchrun --help` of torch 2.13. Each may be written with `-` or `_`, so argparse takes what begins one of them for
# an abbreviation that isn't clear, wherever it stands.
_OF_TORCHRUN = (
    "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval "
    "start-method event-log-handler role module no-python run-path log-dir log-line-prefix-template logs-specs "
    "redirects tee local-ranks-filter node-rank master-addr master-port local-addr numa-binding signals-to-handle"
).split()


def confuses_torchrun(text: str) -> str:
    """The first of a script's options, such as `--log`, that torchrun takes for one of its own; empty if none."""
    for option in re.findall(r"""["']--(\w[\w-]*)["']""", text):
        name = option.replace("_", "-")
        if any(its.startswith(name) and its != name for its in _OF_TORCHRUN):
            return f"--{option}"
    return ""


def packages_above(path: str, text: str) -> int:
    """How many folders above a script are packages, if it imports from these by `from .`: it starts by `-m` then."""
    tree = syntax.shared(text, path)
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    folders = [parent for parent in PurePath(path).parents if parent.name]
    marked = next((i for i, each in enumerate(folders) if not Path(each, "__init__.py").exists()), len(folders))
    return min(max(*levels, marked), len(folders)) if any(levels) else 0


def folders_above(path: str, text: str) -> int:
    """How many folders above a script is the one from which it imports: `pkg/a.py` has `import pkg.b`."""
    if "sys.path" in text:
        return 0
    nodes = list(ast.walk(syntax.shared(text, path)))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    found = 0
    for level, folder in enumerate((parent for parent in PurePath(path).parents if parent.name), 1):
        inside = (Path(folder, *rest) for first, *rest in (name.split(".") for name in names) if first == folder.name)
        found = level if any(each.is_dir() or each.with_suffix(".py").exists() for each in inside) else found
    return found


#: How to run a notebook that stays one.
CELLS = "Run the notebook's cells: the last ones write the script, and start it on all visible GPUs."


def steps(script: str, starts: Starts, *, packages: int = 0, above: int = 0, confused: str = "") -> Iterator[Step]:
    """How to run a script that was converted.

    Args:
        packages: how many folders above it are packages that it imports from.
        above: how many folders above it is the one from which it imports by whole names; 0 for none.
        confused: the option that torchrun would take for its own.
    """
    quoted, folder = shlex.quote(script), ""
    if packages:
        path = PurePath(script)
        top = path.parents[min(packages, len(path.parents) - 1)]
        quoted = "-m " + ".".join(path.relative_to(top).with_suffix("").parts)
        folder = f"cd {shlex.quote(str(top))} && " * (str(top) != ".")
    elif above:
        folder = f"PYTHONPATH={shlex.quote(str(PurePath(script).parents[above]))} "
    yield Step(f"{folder}python {quoted}", starts.value)
    if starts is Starts.BESIDE:
        return
    apart, why = ("-- ", [f"--: torchrun would take {confused} for its own"]) if confused else ("", [])
    if starts is not Starts.VISIBLE:
        which = {Starts.GIVEN: "device_ids it has", Starts.NARROWED: "GPUs it makes visible", Starts.ASKED: "these are"}
        why.insert(0, f"N: how many {which[starts]}")
    count = "gpu" if starts is Starts.VISIBLE else "N"
    # Ranks whose hashes differ go through sets in another order each; the runtime warns of that at every start.
    yield Step(f"{folder}PYTHONHASHSEED=0 torchrun --nproc-per-node={count} {apart}{quoted}", "; ".join(why))


def how_to_run(report: Report) -> Iterator[Step]:
    """How to run what was converted; each command can be pasted as it is."""
    commands = {report.job.names.shown(path): starts for path, starts in report.job.commands.items()}
    scripts = [each for each in report.starting if each.name not in commands]
    written = [each for each in scripts if each.output is not None]
    names, option = [each.output or "" for each in written], ""
    if scripts and not written:
        names, option = _unwritten(report, [each.name for each in scripts])
    it, runs = ("it", "it runs") if len(names) == 1 else ("them", "they run")
    if option:
        yield Step("", f"Add {option} to write {it}; then")
    if len(names) == 1 and is_notebook(names[0]):
        yield Step("", CELLS)
    else:
        yield from _of_scripts(report, written or scripts, names)
    if names and not report.job.request.vendored:
        where = "convert with --vendor, or pip install ./runtime (of dp2ddp)"
        yield Step("", f"dp2ddp_runtime must be there where {runs}: {where}.")
    for command in (command for each in report.started for command in commands.get(each.name, ())):
        yield Step(command, "where the converted project and dp2ddp_runtime can be imported")
        yield Step(f"PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu --no-python {command}")


def _unwritten(report: Report, names: list[str]) -> tuple[list[str], str]:
    """What scripts that weren't written may be called, and the option that writes them."""
    if report.directory is not None:
        return [os.path.join(_FOLDER, os.path.relpath(name, report.directory)) for name in names], f"-o {_FOLDER}"
    if names[0].startswith("<"):
        return ["train_ddp.py"], ""
    if len(names) == 1 and [each.name for each in report.changed] == names:
        new = f"{PurePath(names[0]).stem}_ddp.py"
        return [new], f"-o {shlex.quote(new)}"
    return names, "--in-place"


def _of_scripts(report: Report, scripts: Sequence[File], names: Sequence[str]) -> Iterator[Step]:
    """Of those that start in the same way, the first."""
    everywhere = starts(edit for file in report.files for edit in file.conversion.edits) or Starts.VISIBLE
    confused = next(filter(None, (confuses_torchrun(each.conversion.new_text) for each in report.files)), "")
    alike: dict[Starts, list[tuple[str, int, int]]] = {}
    for name, each in zip(names, scripts):
        text = each.conversion.new_text
        places = packages_above(each.name, text), folders_above(each.name, text)
        alike.setdefault(starts(each.conversion.edits) or everywhere, []).append((name, *places))
    for kind, ((first, packages, above), *others) in alike.items():
        above = above if above < len(PurePath(first).parents) else 0
        yield from steps(first, kind, packages=packages, above=above, confused=confused)
        if others:
            more = f" and {len(others) - _FEW} more" if len(others) > _FEW else ""
            yield Step("", f"and in the same way {', '.join(shlex.quote(each) for each, *_ in others[:_FEW])}{more}")
