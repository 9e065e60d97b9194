"""`[tool.dp2ddp]` in `pyproject.toml`: what the options of a command are where the command line doesn't say."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dp2ddp.errors import BadInput, suggestion

FILE = "pyproject.toml"
TOOL = "dp2ddp"
#: A file without it has no settings for us, and needs no reading as TOML.
_MARK = TOOL.encode()
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
#: What is no option of a run, but of this one command line.
_NOT_SET = frozenset({"help", "isolated"})
#: Commands for which settings may also stand in the table that all share.
_SHARING = ("convert", "check")

#: Which options don't apply to what was asked for on the command line, by the option's name.
Idle = Mapping[str, Callable[[Mapping[str, Any]], bool]]


@dataclass(frozen=True)
class Settings:
    """The table of one file.

    Attributes:
        path: the file.
        text: what it says.
        table: its `[tool.dp2ddp]`.
    """

    path: Path
    text: str
    table: Mapping[str, Any]

    def error(self, keys: Sequence[str], what: str, todo: str = "") -> BadInput:
        """An error about what the file says at `keys`, below `[tool.dp2ddp]`."""
        shown = os.path.relpath(self.path)
        name = str(self.path) if shown.startswith(os.pardir) else shown
        return BadInput(name, line=_line(self.text, (TOOL, *keys)), what=what, todo=todo)

    def defaults(self, context: click.Context, commands: Mapping[str, click.Command], idle: Idle) -> dict[str, Any]:
        """What the options of a command are here, by their parameters' names, as `click.Context.default_map` has it.

        Args:
            context: of the command, with the parameters that the command line gives.
            commands: every command that settings can be for. They may stand in a table of the command's own name, such
                as ``[tool.dp2ddp.check]``; those of `convert` and `check` in ``[tool.dp2ddp]``, too, for all that have
                them.
            idle: options that a setting doesn't reach where they would make no sense.

        Raises:
            BadInput: an unknown key, or a value of the wrong kind.
        """
        found: dict[str, Any] = {}
        options = _options(context.command)
        for keys, value in self._checked(commands):
            option = options.get(keys[-1])
            if option is None or option.name is None or keys[:-1] not in ([], [context.command.name]):
                continue
            if not (option.name in idle and idle[option.name]({**context.params, **found})):
                is_path = isinstance(option.type, click.Path)
                found[option.name] = _from(self.path.parent, value) if is_path else value
        return found

    def _checked(self, commands: Mapping[str, click.Command]) -> Iterator[tuple[list[str], Any]]:
        """Every setting with its keys; those of a command's own table last, as they count more."""
        shared = {key: option for name in _SHARING for key, option in _options(commands[name]).items()}
        own = {name: each for name, each in self.table.items() if name in commands and isinstance(each, dict)}
        entries = [([key], value, shared) for key, value in self.table.items() if key not in own]
        entries += [([name, key], own[name][key], _options(commands[name])) for name in own for key in own[name]]
        for keys, value, options in entries:
            option = options.get(keys[-1])
            if option is None:
                homes = [name for name, command in commands.items() if keys[-1] in _options(command)]
                meant = suggestion(keys[-1], [*options, *commands])
                meant = f"write it in [tool.{TOOL}.{homes[0]}]" if homes else meant
                raise self.error(keys, f"no setting {keys[-1]!r}", meant)
            wanted, fits = _kind(option)
            if type(value) not in fits:
                raise self.error(keys, f"{keys[-1]!r} must be {wanted}")
            yield keys, [f"{name}={does}" for name, does in value.items()] if option.hidden else value

    def misread(self, error: click.BadParameter | BadInput, context: click.Context) -> BadInput:
        """The error about a value that an option doesn't take, as one about the line that says it."""
        if isinstance(error, BadInput):
            key, what, todo = error.file.lstrip("-"), error.what, error.todo
        else:
            key = max(error.param.opts, key=len).lstrip("-") if error.param is not None else ""
            what, todo = f"{key!r}: {error.message.rstrip('.')}", ""
        said = re.findall(r"'([^']*)'", what.partition(":")[2] or what)
        own = [context.command.name or ""] if context.command.name in self.table else []
        return self.error([*own, key, *said[:1]], what, todo)


def nearest(place: Path) -> Settings | None:
    """The settings for what lies at `place`: those of the nearest `pyproject.toml` upwards that has any.

    Raises:
        BadInput: a file that names dp2ddp can't be read, or is no TOML.
    """
    place = Path(os.path.abspath(place))
    for folder in (place, *place.parents) if place.is_dir() else place.parents:
        found = _read(folder / FILE)
        if found is not None:
            return found
    return None


def for_all(inputs: Iterable[str]) -> Settings | None:
    """The settings for several files and folders.

    Raises:
        BadInput: they have different ones.
    """
    by_input = {name: nearest(Path("." if name in ("", "-") else name)) for name in inputs}
    different = {found.path if found else None: name for name, found in by_input.items()}
    if len(different) > 1:
        said = ", ".join(f"{os.path.relpath(path) if path else 'none'} for {name}" for path, name in different.items())
        raise BadInput(FILE, what=f"the inputs have different settings: {said}", todo="give them one by one")
    return next(iter(by_input.values()), None)


def _read(path: Path) -> Settings | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if _MARK not in data:
        return None
    try:
        text = data.decode("utf-8")
        tool = _parsed(text).get("tool")
    except UnicodeDecodeError:
        raise BadInput(os.path.relpath(path), what="not UTF-8, as TOML has to be") from None
    except ValueError as error:
        place = _PLACE.search(str(error))
        what = f"no TOML: {_PLACE.sub('', str(error)).strip()}"
        line, column = map(int, place.groups()) if place else (None, None)
        raise BadInput(os.path.relpath(path), line=line, column=column, what=what) from None
    if not isinstance(tool, dict) or TOOL not in tool:
        return None
    found = Settings(path, text, tool[TOOL] if isinstance(tool[TOOL], dict) else {})
    if not isinstance(tool[TOOL], dict):
        raise found.error([], "`tool.dp2ddp` must be a table", "write [tool.dp2ddp]")
    return found


def _parsed(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    parsed: dict[str, Any] = tomllib.loads(text)
    return parsed


def _line(text: str, words: Sequence[str]) -> int:
    """The line where a file says the last of some words: each of them is looked for from the one before on."""
    lines, at = text.split("\n"), 0
    for word in words:
        said = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        at = next((number for number in range(at, len(lines)) if said.search(lines[number])), at)
    return at + 1


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command, by what they are called in a file."""
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in _NOT_SET]
    return {name[2:]: option for option in options for name in option.opts if name.startswith("--")}


def _kind(option: click.Option) -> tuple[str, Sequence[type]]:
    """What a setting has to be, in words and for Python; click looks closer."""
    if option.multiple:
        return ("a table", [dict]) if option.hidden else ("a list of strings", [list])
    return ("true or false", [bool]) if option.is_flag else ("a string or a number", [str, int, float])


def _from(folder: Path, value: Any) -> Any:
    """A path, or several, that a file in `folder` says, as seen from the current folder; other names stay."""
    if isinstance(value, list):
        return [_from(folder, each) for each in value]
    is_function = ":" in str(value) and not (folder / str(value)).exists()
    if value == "-" or is_function or os.path.isabs(str(value)):
        return value
    return os.path.relpath(folder / str(value)) + ("/" if str(value).endswith("/") else "")
