"""Diffs, and how to run what was converted."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePath

from click import style

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"(@@ -(\d+).* @@)(.*)")
_COLORS = {"+": "green", "-": "red"}
#: What git takes for the line that a hunk is in: one that begins with a name.
_HEADING = re.compile(r"[A-Za-z_]")
_FEW = 4
_NEEDED = "  dp2ddp_runtime is imported: pip install dp2ddp-runtime where {}, or convert with --vendor."


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both.

    As git has it, a hunk says behind its line numbers which function or class it is in.
    """
    before = _LINE.findall(old)
    lines = difflib.unified_diff(before, _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    whole = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(_with_heading(line, before) for line in whole)


def _with_heading(line: str, before: Sequence[str]) -> str:
    hunk = _HUNK.match(line)
    if hunk is None:
        return line
    above = before[: max(int(hunk[2]) - 1, 0)]
    heading = next((text for text in reversed(above) if _HEADING.match(text)), "")
    return f"{hunk[1]} {heading.strip()}".rstrip() + "\n"


def colored(text: str) -> str:
    """A diff in the colors of `git diff`."""
    return "".join(f"{_colored(line)}\n" for line in text.removesuffix("\n").split("\n"))


def _colored(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return style(line, bold=True)
    hunk = _HUNK.match(line)
    if hunk is not None:
        return style(hunk[1], fg="cyan") + hunk[3]
    return style(line, fg=_COLORS[line[0]]) if line[:1] in _COLORS else line


def how_to_run(scripts: Sequence[tuple[str, str | None]], *, vendored: bool) -> Iterator[str]:
    """How to run scripts that were converted; each line can be pasted as it is.

    Args:
        scripts: their names, and the files written; None where nothing was (a diff, or standard output).
        vendored: whether the runtime was copied beside them.
    """
    if len(scripts) == 1 and (scripts[0][1] or "").endswith(".ipynb"):
        yield style("How to run it:", bold=True)
        yield "  Run the notebook's cells: the last ones write the script, and start it on all visible GPUs."
        if not vendored:
            yield _NEEDED.format("it runs")
        return
    it, runs = ("it", "it runs") if len(scripts) == 1 else ("them", "they run")
    yield style(f"How to run {it}, with your own arguments:", bold=True)
    names = [name for name, output in scripts if output is None]
    if names and not names[0].startswith("<"):
        target = shlex.quote(_fresh(names[0])) if len(names) == 1 else "converted/"
        yield f"  Add -o {target} to write {it} (or --in-place); then"
    files = [shlex.quote(output or _fresh(name)) for name, output in scripts]
    yield f"  python {files[0]}   # one process on each visible GPU of this machine"
    # Ranks whose hashes differ go through sets in another order each; the runtime warns of that at every start.
    yield f"  PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu {files[0]}"
    if len(files) > 1:
        more = f" and {len(files) - 1 - _FEW} more" if len(files) - 1 > _FEW else ""
        yield f"  and in the same way {', '.join(files[1 : 1 + _FEW])}{more}"
    if not vendored:
        yield _NEEDED.format(runs)


def _fresh(name: str) -> str:
    """What the conversion of a script may be called."""
    path = PurePath(name)
    return "train_ddp.py" if name.startswith("<") else f"{path.stem}_ddp.py"


def how_to_run_commands(commands: Sequence[str]) -> Iterator[str]:
    """How to run functions that are started by commands, and that were converted."""
    yield style("How to run what isn't a script:", bold=True)
    for command in commands:
        yield f"  {command}   or PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu --no-python {command}"
    yield "  once the converted project is installed where dp2ddp_runtime can be imported."


def count(things: Collection[object], name: str) -> str:
    """`3 changes`, `1 note`."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def listed(lines: Iterable[str], most: int | None) -> Iterator[str]:
    """`lines`, of more than `most` the first, and how many there are besides."""
    all_lines = list(lines)
    shown = all_lines if most is None or len(all_lines) <= most + 1 else all_lines[:most]
    yield from shown
    if len(shown) < len(all_lines):
        yield f"  and {len(all_lines) - len(shown)} more, which --verbose shows"
