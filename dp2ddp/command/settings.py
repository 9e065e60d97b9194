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
from click.core import ParameterSource

from dp2ddp.errors import BadInput, suggestion

FILE = "pyproject.toml"
TOOL = "dp2ddp"
#: A file without it has no settings for us, and needs no reading as TOML.
_MARK = TOOL.encode()
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
#: What is no option of a run, but of this one command line.
_NOT_SET = frozenset({"help", "isolated"})


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


#: Which options don't apply to what was asked for on the command line, by the option's name.
Idle = Mapping[str, Callable[[Mapping[str, Any]], bool]]


def apply(context: click.Context, inputs: Iterable[str], commands: Mapping[str, click.Command], idle: Idle) -> None:
    """Sets the options that the command line left out as the settings for the inputs have them.

    Args:
        context: of the command; its parameters are changed.
        inputs: the files and folders that it works on.
        commands: every command that settings can be for. They may stand in a table of the command's own name, such as
            ``[tool.dp2ddp.check]``; those of `convert` and `check` in ``[tool.dp2ddp]``, too, for all that have them.
        idle: options that a setting doesn't reach where they would make no sense.

    Raises:
        BadInput: an unknown key, or a value that the option doesn't take; the inputs have different settings.
    """
    found = _for_all(inputs)
    if found is None:
        return
    for keys, value in _checked(found, commands, context):
        *own, key = keys
        parameter = _options(context.command).get(key)
        if parameter is None or parameter.name is None or own not in ([], [context.command.name]):
            continue
        if context.get_parameter_source(parameter.name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            continue
        if parameter.name in idle and idle[parameter.name](context.params):
            continue
        if isinstance(parameter.type, click.Path):
            value = _from(found.path.parent, value)
        context.params[parameter.name] = value


def _for_all(inputs: Iterable[str]) -> Settings | None:
    by_input = {name: nearest(Path("." if name in ("", "-") else name)) for name in inputs}
    different = {found.path if found else None: name for name, found in by_input.items()}
    if len(different) > 1:
        said = ", ".join(f"{os.path.relpath(path) if path else 'none'} for {name}" for path, name in different.items())
        raise BadInput(FILE, what=f"the inputs have different settings: {said}", todo="give them one by one")
    return next(iter(by_input.values()), None)


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command, by what they are called in a file."""
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in _NOT_SET]
    return {name[2:]: option for option in options for name in option.opts if name.startswith("--")}


def _checked(
    found: Settings, commands: Mapping[str, click.Command], context: click.Context
) -> Iterator[tuple[list[str], Any]]:
    """Every setting with its keys; those of a command's own table last, as they count more."""
    shared = {key: option for name in ("convert", "check") for key, option in _options(commands[name]).items()}
    tables = [key for key, value in found.table.items() if key in commands and isinstance(value, dict)]
    for key, value in found.table.items():
        if key not in tables:
            yield [key], _value(found, [key], value, shared, commands, context)
    for name in tables:
        for key, value in found.table[name].items():
            yield [name, key], _value(found, [name, key], value, _options(commands[name]), commands, context)


def _value(
    found: Settings,
    keys: Sequence[str],
    value: Any,
    options: Mapping[str, click.Option],
    commands: Mapping[str, click.Command],
    context: click.Context,
) -> Any:
    """A value as the command gets it."""
    key = keys[-1]
    if key not in options:
        homes = [name for name, command in commands.items() if key in _options(command)]
        meant = f"write it in [tool.{TOOL}.{homes[0]}]" if homes else suggestion(key, [*options, *commands])
        raise found.error(keys, f"no setting {key!r}", meant)
    option = options[key]
    wanted, kind = next(((words, kind) for words, kind, is_it in _KINDS if is_it(option)), ("a string", str))
    is_one = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not is_one or (kind is list and not all(isinstance(each, str) for each in value)):
        raise found.error(keys, f"{key!r} must be {wanted}")
    if not option.multiple:
        return _converted(found, keys, value, option, context)
    each = [f"{name}={does}" for name, does in value.items()] if isinstance(value, dict) else value
    return tuple(_converted(found, keys, one, option, context) for one in each)


#: What a setting has to be, in words and for Python, by the option.
_KINDS: Sequence[tuple[str, Any, Callable[[click.Option], bool]]] = (
    ("a table", dict, lambda option: option.hidden),
    ("a list of strings", list, lambda option: option.multiple),
    ("true or false", bool, lambda option: option.is_flag),
    ("a whole number", int, lambda option: isinstance(option.type, click.types.IntParamType)),
    ("a number", (int, float), lambda option: isinstance(option.type, click.types.FloatParamType)),
)


def _converted(found: Settings, keys: Sequence[str], value: Any, option: click.Option, context: click.Context) -> Any:
    try:
        return option.type.convert(value, option, context)
    except BadInput as error:
        what, todo = error.what, error.todo
    except click.BadParameter as error:
        what = f"{max(option.opts, key=len).lstrip('-')!r}: {error.message.rstrip('.')}"
        todo = suggestion(str(value), option.type.choices) if isinstance(option.type, click.Choice) else ""
    raise found.error([*keys, str(value).partition("=")[0]], what, todo)


def _from(folder: Path, value: Any) -> Any:
    """A path, or several, that a file in `folder` says, as seen from the current folder; other names stay."""
    if isinstance(value, tuple):
        return tuple(_from(folder, each) for each in value)
    if isinstance(value, Path):
        return Path(_from(folder, str(value)))
    is_function = ":" in value and not (folder / value).exists()
    if value == "-" or is_function or os.path.isabs(value):
        return value
    return os.path.relpath(folder / value) + ("/" if value.endswith("/") else "")
