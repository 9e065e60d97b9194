"""How to run what was converted."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from dp2ddp.project import imports

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


#: What becomes of the command.
STARTS = "one process on each GPU that it wraps a model for"
TRY = "to try it without GPUs, if it can run so, put DP2DDP_NPROC=2 in front"
#: What is added to `sys.path` is meant from the current folder: `sys.path.append("../..")`.
_FROM_HERE = re.compile(r"sys\.path\.(append|insert)\((0, *)?[\"'](\.\.?)[\"'/]")
_DEVICES = re.compile(r"wrap_model\(.*\bdevice_ids=[\[(]([\d, ]+)[\])]")


def packages_above(path: str, text: str) -> int:
    """How many folders above a script are packages, if it imports from these by `from .`: it starts by `-m` then."""
    levels = [each.level for each in imports.read(text, path).imports]
    folders = [parent for parent in PurePath(path).parents if parent.name]
    marked = next((i for i, each in enumerate(folders) if not Path(each, "__init__.py").exists()), len(folders))
    return min(max(*levels, marked), len(folders)) if any(levels) else 0


def folders_above(path: str, text: str, converted: Iterable[str]) -> int:
    """How many folders above a script is the one from which it imports what was converted, outside of its own folder.

    Unless Python looks there, it would find what is installed by that name.
    """
    if "sys.path" in text:
        return 0
    own = Path(path).parent
    firsts = [each.module.split(".")[0] for each in imports.read(text, path).imports if not each.level]
    firsts = [each for each in firsts if not ((own / each).is_dir() or (own / f"{each}.py").exists())]
    there = {head for each in map(PurePath, converted) for head in (each.with_suffix(""), *each.parents)}
    folders = enumerate((parent for parent in PurePath(path).parents if parent.name), 1)
    return next((level for level, folder in folders if any(folder.parent / each in there for each in firsts)), 0)


def command(script: str, *, packages: int = 0, above: int = 0, inside: bool = False) -> str:
    """How to run a script that was converted.

    Args:
        packages: how many folders above it are packages that it imports from.
        above: how many folders above it is the one from which it imports by whole names; 0 for none.
        inside: whether it has to be started in its own folder.
    """
    quoted, folder = shlex.quote(script), ""
    if packages:
        path = PurePath(script)
        top = path.parents[min(packages, len(path.parents) - 1)]
        quoted = "-m " + ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__main__")
        folder = f"cd {shlex.quote(str(top))} && " * (str(top) != ".")
    elif inside:
        here, script = os.path.split(script)
        quoted, folder = shlex.quote(script), f"cd {shlex.quote(here)} && " * bool(here)
    elif above:
        folder = f"PYTHONPATH={shlex.quote(str(PurePath(script).parents[above]))} "
    return f"{folder}python {quoted}"


def how_to_run(report: Report) -> Iterator[Step]:
    """How to run what was converted; each command can be pasted as it is."""
    scripts = report.starting
    written = [each for each in scripts if each.output is not None]
    names, option = [each.output or "" for each in written], ""
    if scripts and not written:
        names, option = _unwritten(report, [each.name for each in scripts])
    it, runs = "it" if len(names) == 1 else "them", "it" if report.directory is None else "a changed file"
    if option:
        yield Step("", f"Add {option} to write {it}; then")
    yield from _of_scripts(written or scripts, names, [each.name for each in report.changed])
    if names and not report.job.request.vendored:
        where = "convert with --vendor, or pip install ./runtime (of dp2ddp)"
        yield Step("", f"dp2ddp_runtime must be there where {runs} runs: {where}.")


def _starts(texts: Iterable[str]) -> str:
    """How many processes start: a number where all wraps say which devices."""
    wraps = [line for text in texts for line in text.split("\n") if "wrap_model(" in line]
    found = [_DEVICES.search(line) for line in wraps]
    counts = {len(each[1].replace(",", " ").split()) if each else 0 for each in found}
    count = max(counts, default=0)
    return f"{count} processes, one on each GPU of `device_ids`" if len(counts) == 1 and count > 1 else STARTS


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


def _of_scripts(scripts: Sequence[File], names: Sequence[str], converted: Sequence[str]) -> Iterator[Step]:
    """The first of them, and the names of the others."""
    if not names:
        return
    first, text = scripts[0].name, scripts[0].conversion.new_text
    above = folders_above(first, text, converted)
    above = above if above < len(PurePath(names[0]).parents) else 0
    starts = _starts([each.conversion.new_text for each in scripts])
    inside = {each[3] for each in _FROM_HERE.finditer(text)} == {".."}  # with "." as well it is the folder above
    packages = packages_above(first, text)
    yield Step(command(names[0], packages=packages, above=above, inside=inside), f"{starts}; {TRY}")
    # (From a folder that was said already.)
    others = [os.path.relpath(each, os.path.dirname(names[0])) if os.path.isabs(each) else each for each in names[1:]]
    if others:
        more = f" and {len(others) - _FEW} more" if len(others) > _FEW else ""
        yield Step("", f"and in the same way {', '.join(map(shlex.quote, others[:_FEW]))}{more}")
