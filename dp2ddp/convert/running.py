"""How to run what was converted."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat
from pathlib import Path, PurePath
from typing import NamedTuple

from click import style

from dp2ddp.notebook.notebook import is_notebook
from dp2ddp.rewrite.edits import Edit, InsertBefore
from dp2ddp.rules.launch import NARROWED
from dp2ddp.source import syntax

#: So many scripts are named that start in the same way.
_FEW = 4


class Step(NamedTuple):
    """One way to run what was converted.

    Attributes:
        command: as typed into a shell.
        what: what it does; may be empty.
        takes_arguments: whether the script's own arguments follow.
    """

    command: str
    what: str = ""
    takes_arguments: bool = True


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


class Running(NamedTuple):
    """What there is to run once a conversion is done.

    Attributes:
        scripts: the files that were written, or would be.
        unwritten: the option that would write them; None if they are written.
        commands: what starts functions that were converted.
        vendored: whether the runtime was copied beside the scripts.
        starts: how many processes a start of each script means.
        confused: one of the scripts' options that torchrun would take for its own.
        packages: how many folders above each script are packages that it imports from by `from .`; 0 where it doesn't.
    """

    scripts: Sequence[str]
    unwritten: str | None = None
    commands: Sequence[str] = ()
    vendored: bool = False
    starts: Sequence[Starts] = ()
    confused: str = ""
    packages: Iterable[int] = repeat(0)


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


#: How to run a notebook that stays one.
CELLS = "Run the notebook's cells: the last ones write the script, and start it on all visible GPUs."


def steps(script: str, starts: Starts, *, packages: int = 0, confused: str = "") -> Iterator[Step]:
    """How to run a script that was converted.

    Args:
        packages: how many folders above it are packages that it imports from.
        confused: the option that torchrun would take for its own.
    """
    quoted, folder = shlex.quote(script), ""
    if packages:
        path = PurePath(script)
        top = path.parents[min(packages, len(path.parents) - 1)]
        quoted = "-m " + ".".join(path.relative_to(top).with_suffix("").parts)
        folder = f"cd {shlex.quote(str(top))} && " * (str(top) != ".")
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


def steps_for_commands(commands: Sequence[str]) -> Iterator[Step]:
    """How to run functions that are started by commands."""
    for command in commands:
        yield Step(command)
        yield Step(f"PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu --no-python {command}")


def what_it_imports(scripts: int) -> str:
    """What has to be installed where so many converted scripts run."""
    runs = "it runs" if scripts == 1 else "they run"
    return f"dp2ddp_runtime must be there where {runs}: convert with --vendor, or pip install ./runtime (of dp2ddp)."


#: Said of what commands start.
FOR_COMMANDS = "once the converted project is installed where dp2ddp_runtime can be imported."


def how_to_run(running: Running) -> Iterator[str]:
    """How to run scripts that were converted; each line can be pasted as it is."""
    scripts, unwritten = running.scripts, running.unwritten
    it = "it" if len(scripts) == 1 else "them"
    if len(scripts) == 1 and is_notebook(scripts[0]):
        yield style("How to run it:", bold=True)
        yield f"  {CELLS}"
    else:
        yield style(f"How to run {it}, with your own arguments:", bold=True)
        if unwritten is not None:
            yield f"  Add {unwritten} to write {it}; then"
        for kind in dict.fromkeys(running.starts):
            alike = zip(scripts, running.packages, running.starts)
            (first, packages), *others = ((each, above) for each, above, its in alike if its is kind)
            for step in steps(first, kind, packages=packages, confused=running.confused):
                yield f"  {step.command}   # {step.what}" if step.what else f"  {step.command}"
            if others:
                more = f" and {len(others) - _FEW} more" if len(others) > _FEW else ""
                yield f"  and in the same way {', '.join(shlex.quote(each) for each, _ in others[:_FEW])}{more}"
    if not running.vendored:
        yield f"  {what_it_imports(len(scripts))}"


def how_to_run_commands(commands: Sequence[str]) -> Iterator[str]:
    """How to run functions that are started by commands, and that were converted."""
    yield style("How to run what isn't a script:", bold=True)
    for command in commands:
        yield f"  {command}   or PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu --no-python {command}"
    yield f"  {FOR_COMMANDS}"
