"""Diffs, and how to run what was converted."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence

from click import style

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"(@@ -(\d+).* @@)(.*)")
_COLORS = {"+": "green", "-": "red"}
#: What git takes for the line that a hunk is in: one that begins with a name.
_HEADING = re.compile(r"[A-Za-z_]")
_FEW = 4


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both.

    As git has it, a hunk says behind its line numbers which function or class it is in.
    """
    name = _quoted(name)
    before = _LINE.findall(old)
    lines = difflib.unified_diff(before, _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    whole = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(_with_heading(line, before) for line in whole)


def _quoted(name: str) -> str:
    """A file's name as git and patch write it where it isn't plain text: in quotes, bytes as octal numbers."""
    if name.isprintable() and '"' not in name:
        return name
    data = os.fsencode(name)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in data)
    return f'"{"".join(plain)}"'


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


def how_to_run(scripts: Sequence[str], *, unwritten: str | None = None, vendored: bool) -> Iterator[str]:
    """How to run scripts that were converted; each line can be pasted as it is.

    Args:
        scripts: the files that were written, or would be.
        unwritten: the option that would write them; None if they are written.
        vendored: whether the runtime was copied beside them.
    """
    it, runs = ("it", "it runs") if len(scripts) == 1 else ("them", "they run")
    if len(scripts) == 1 and scripts[0].endswith(".ipynb"):
        yield style("How to run it:", bold=True)
        yield "  Run the notebook's cells: the last ones write the script, and start it on all visible GPUs."
    else:
        yield style(f"How to run {it}, with your own arguments:", bold=True)
        if unwritten is not None:
            yield f"  Add {unwritten} to write {it}; then"
        first, *others = map(shlex.quote, scripts)
        yield f"  python {first}   # one process on each visible GPU of this machine"
        # Ranks whose hashes differ go through sets in another order each; the runtime warns of that at every start.
        yield f"  PYTHONHASHSEED=0 torchrun --nproc-per-node=gpu {first}"
        if others:
            more = f" and {len(others) - _FEW} more" if len(others) > _FEW else ""
            yield f"  and in the same way {', '.join(others[:_FEW])}{more}"
    if not vendored:
        yield f"  dp2ddp_runtime is imported: pip install dp2ddp-runtime where {runs}, or convert with --vendor."


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
