"""``python -m libcst.tool codemod data_parallel.ConvertCommand PATH...``: a conversion among other codemods."""

from __future__ import annotations

import argparse
import atexit
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Callable, TypeVar

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from dp2ddp.convert import job, programs
from dp2ddp.convert.job import Request
from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.convert.programs import Outcome
from dp2ddp.errors import BadInput
from dp2ddp.project import text_files, wrapcalls
from dp2ddp.rules import Options, check_ignored

_FOLDER = "DP2DDP_CODEMOD"
_T = TypeVar("_T")


class ConvertCommand(CodemodCommand):
    """Each file becomes what `dp2ddp convert PROJECT --in-place` makes of it.

    libcst hands out one file at a time, and a conversion is one of a whole program. So the project around a file is
    looked at as a whole, once for all of libcst's processes, and the file gets its part. What needs a person becomes a
    warning; a file that can't be converted is skipped, with the reason.
    """

    DESCRIPTION = "Turns nn.DataParallel training scripts into DistributedDataParallel ones that train the same model."

    def __init__(
        self,
        context: CodemodContext,
        *,
        sync_bn: bool = False,
        clean_keys: bool = False,
        allow_ddp: bool = False,
        annotate: bool = False,
        rows: bool = False,
        ignore: Sequence[str] = (),
    ) -> None:
        super().__init__(context)
        self.options = Options(
            sync_bn=sync_bn,
            clean_keys=clean_keys,
            allow_ddp=allow_ddp,
            annotate=annotate,
            rows=rows,
            ignore=frozenset(ignore),
        )

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        """The options of `dp2ddp convert` that say how; libcst calls this before it starts its processes."""
        _prepare()
        for name in ("sync-bn", "clean-keys", "allow-ddp", "annotate", "rows"):
            arg_parser.add_argument(f"--{name}", action="store_true", help=f"As for `dp2ddp convert --{name}`.")
        arg_parser.add_argument(
            "--ignore", metavar="RULE", action="append", default=[], type=_ignored, help="As for `dp2ddp convert`."
        )

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The file's conversion; the file itself if it needs none.

        Raises:
            SkipFile: it can't be converted.
        """
        name = self.context.filename
        try:
            if name is None or not os.path.isfile(name):
                done = convert_source(tree.code, name or "<stdin>", self.options)
                others: list[str] = []
            else:
                done, others = _conversion(name, tree.code, self.options)
        except BadInput as error:
            raise SkipFile(str(error)) from None
        for note in done.notes:
            self.warn(f"line {note.span.start.line}: {note.rule}: {note.what}; {note.todo}")
        if done.refused:
            raise SkipFile("nothing was converted")
        if not done.changed:
            return tree
        if others:
            self.warn(f"must change together with {', '.join(others)}; let libcst.tool have the whole project")
        return cst.parse_module(done.new_text, config=tree.config_for_parsing)


def _ignored(rule_id: str) -> str:
    try:
        return check_ignored(rule_id, "--ignore")
    except BadInput as error:
        raise argparse.ArgumentTypeError(f"{error.what}; {error.todo}") from None


def _conversion(name: str, text: str, options: Options) -> tuple[Conversion, list[str]]:
    """What becomes of a file, and which others change.

    Raises:
        BadInput: its program can't be converted, or nothing in its project can.
    """
    place = Path(os.path.abspath(name))
    root = programs.root_of([place])
    if text_files.read(name).text.removeprefix("\ufeff") != text.removeprefix("\ufeff"):
        raise BadInput(name, what="changed by another codemod before", todo="convert first")
    try:
        outcome = _project(root, options)
    except BadInput as error:
        if wrapcalls.mentions(text.encode()):
            raise
        raise SkipFile(f"its project can't be converted: {error}") from None
    path = place.relative_to(root).as_posix()
    for program, why in outcome.refused:
        if program.entry == path:
            raise why
    done = outcome.conversions.get(path, Conversion(text))
    mates = {file for program in outcome.programs if path in program.files for file in program.files}
    return done, [each for each in outcome.changed() if each in mates and each != path]


@lru_cache(maxsize=4)
def _project(root: Path, options: Options) -> Outcome:
    request = Request([str(root)], options)
    return _once(repr(request), lambda: job.converted(request, []).outcome)


def _prepare() -> None:
    """To be called in the process that starts the others: makes a folder for them, which goes when it ends."""
    if _FOLDER not in os.environ:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="dp2ddp-codemod-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _once(key: str, compute: Callable[[], _T]) -> _T:
    """The value of `compute`, which is run in one process only; or the error that it raised.

    Without `_prepare`, there is one process.
    """
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return compute()
    try:
        import fcntl
    except ImportError:
        why = "it can't tell libcst's processes apart on this system"
        raise BadInput("libcst.tool", what=why, todo="use `dp2ddp convert`") from None
    place = Path(folder, hashlib.sha256(key.encode()).hexdigest())
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            try:
                result: tuple[_T | None, Exception | None] = compute(), None
            except Exception as error:  # noqa: BLE001 - raised again, in every process
                result = None, error
            place.write_bytes(pickle.dumps(result))
    # Our own folder, which nobody else can write to.
    value, failure = pickle.loads(place.read_bytes())
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]
