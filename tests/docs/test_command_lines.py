"""Commands in the pages exist: their options, the extras that they install, and the files that are named."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import blocks
import click
import pytest

from dp2ddp.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TEXTS = {page.relative_to(blocks.ROOT).as_posix(): page.read_text("utf-8") for page in blocks.PAGES}


#: What may stand before a command, and of how many words it is.
_BEFORE = {"uvx": 1, "pipx": 1, "run": 1, "srun": 1, "--from": 2, "--spec": 2}


def _lines() -> Iterator[tuple[str, str]]:
    """Where each command stands, and the command: lines of blocks, and what stands in backticks."""
    for block in blocks.all_blocks():
        if block.language in ("", "console", "bash"):
            for number, line in enumerate(block.text.replace("\\\n", "").splitlines(), block.line):
                yield f"{block.page}:{number}", line.removeprefix("$ ")
    for page, text in _TEXTS.items():
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((f"{page}:{number}", quoted) for quoted in re.findall(r"`([^`]+)`", line))


def _commands(*names: str, whole: bool = False) -> list[Any]:
    """The words of the commands of these names, as the shell would split them; only those with a script, if `whole`."""
    found: list[object] = []
    for where, line in _lines():
        for part in re.split(r"\s(?:\||&&|;)\s", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # prose, with an apostrophe
                continue
            while words and (words[0] in _BEFORE or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
                words = words[_BEFORE.get(words[0], 1) :]
            if whole and not any(word.endswith(".py") for word in words):
                continue
            if len(words) > 1 and " ".join(words).startswith(tuple(f"{name} " for name in names)):
                found.append(pytest.param(words, id=f"{where} {part}"))
    return found


@pytest.mark.parametrize("words", _commands("dp2ddp"))
def test_options_of_dp2ddp_exist(words: list[str]) -> None:
    context = click.Context(main)
    arguments = words[1:]
    if arguments[0].startswith("-"):
        main.make_parser(context).parse_args(arguments)
        return
    command = main.get_command(context, arguments[0])
    assert command is not None, arguments[0]
    given, _, _ = command.make_parser(click.Context(command)).parse_args(arguments[1:])
    for parameter in command.params:
        values = given.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice) and isinstance(values, str):
            parameter.type.convert(values, parameter, None)


def test_commands_of_dev_exist() -> None:
    shown = subprocess.run(
        [sys.executable, "dev.py", "-h"], cwd=blocks.ROOT, capture_output=True, text=True, check=True
    )
    used = {each.values[0][2] for each in _commands("python3 dev.py")}
    assert {"test", "check", "docs"} <= used
    assert used <= set(re.findall(r"^  (\w+) ", shown.stdout, re.MULTILINE))


def test_extras_exist() -> None:
    project = tomllib.loads((blocks.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {
        name
        for text in _TEXTS.values()
        for group in re.findall(r"(?:dp2ddp|\"\.)\[([\w,]+)\]", text)
        for name in group.split(",")
    }
    assert named
    assert named <= project["optional-dependencies"].keys()


def test_files_that_are_named_exist() -> None:
    ours = r"`((?:tests|docs|dp2ddp|runtime|fixtures|benchmarks)/[\w./-]*)`"
    named = {(page, name) for page, text in _TEXTS.items() for name in re.findall(ours, text)}
    assert len(named) > 15
    assert [each for each in sorted(named) if not (blocks.ROOT / each[1]).exists()] == []
