"""What a developer runs: `python3 dev.py demo`, `test`, `check`, `docs`, `dist`, `gpu`, `audit`.

Needs nothing but Python 3.10 or newer: the first run makes `.venv` beside this file and installs the project into it,
later runs start at once. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STAMP = "dp2ddp-ready"
OLDEST = (
    "torch==2.1.0",
    "torchvision==0.16.0",
    "numpy<2",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
)
#: What torch's version can change: models, gradients, rows, loaders, files, and a few starts.
OLDEST_TESTS = tuple(
    f"tests/runtime/test_{name}.py"
    for name in (
        "model gradients one_gpu deferred deferred_outputs handover rowwise streams loader workers "
        "checkpoint files births"
    ).split()
)
OLDEST_PYTHONS = ((3, 9), (3, 10), (3, 11))  # torch 2.1 has wheels for these; the oldest that is found is taken


class SetupError(Exception):
    """The environment can't be made; the message is one line that says why."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment beside this file.

    `packages` are pip requirements; `base` is the interpreter it is made from, None for the running one.
    """

    folder: Path
    packages: tuple[str, ...]
    base: str | None = None

    @property
    def python(self) -> str:
        """Path of the environment's interpreter."""
        return str(self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    @property
    def recipe(self) -> str:
        """What the environment is made from; another recipe means that it is made anew."""
        project = (ROOT / "pyproject.toml").read_bytes()
        parts = "\n".join((str(ROOT), self.base or sys.executable, *self.packages)).encode()
        return hashlib.sha256(project + parts).hexdigest()

    def ready(self) -> bool:
        """Whether it is there, complete, and made from today's recipe."""
        stamp = self.folder / STAMP
        return stamp.is_file() and stamp.read_text() == self.recipe and Path(self.python).exists()

    def make(self) -> None:
        """Make it unless it is ready. Raises `SetupError`."""
        if self.ready():
            return
        print(f"dev.py: setting up {self.folder.name} (downloads PyTorch, minutes)", flush=True)
        if Path(sys.prefix).resolve() != self.folder.resolve():  # anew: what isn't asked for any more must not stay
            self._create()
        self._install()
        (self.folder / STAMP).write_text(self.recipe)

    def _create(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        result = subprocess.run(
            [self.base or sys.executable, "-m", "venv", str(self.folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            last = (result.stderr or result.stdout).strip().splitlines()[-1:]
            hint = "install Python's venv module (Debian, Ubuntu: the package python3-venv)"
            raise SetupError(f"can't create {self.folder.name}: {' '.join(last) or 'venv failed'}; {hint}")

    def _install(self) -> None:
        """Install with uv, which is several times faster here; with pip where uv can't be had."""
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        bootstrap = [*pip, "install", "--quiet", "--retries", "1", "uv"]
        uv = subprocess.run(bootstrap, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if uv.returncode == 0:
            # The interpreter by its path: uv takes a pyenv shim on PATH for an interpreter.
            command = [self.python, "-m", "uv", "pip", "install", "--quiet", "--python", self.python]
        else:
            print("dev.py: uv can't be installed here, going on with pip", flush=True)
            command = [*pip, "install", "--quiet"]
        # Compiled once here instead of by every process of the first test run.
        environment = {**os.environ, "UV_COMPILE_BYTECODE": "1"}
        result = subprocess.run(
            [*command, *self.packages], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False
        )
        if result.returncode:
            raise SetupError(
                f"can't install into {self.folder.name} (see above); is there a network? "
                f"Then run this again, or delete {self.folder.name} first"
            )

    def run(self, *arguments: str, **variables: str) -> int:
        """Run the environment's Python with `arguments` in the project's folder; returns the exit code."""
        environment = clean(os.environ) | variables
        path = [str(Path(self.python).parent), environment.get("PATH", "")]
        environment["PATH"] = os.pathsep.join(part for part in path if part)
        return subprocess.run([self.python, *arguments], cwd=ROOT, env=environment, check=False).returncode


MAIN = Environment(ROOT / ".venv", ("-e", ".[dev]"))


def clean(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment's variables without those that would lead Python to another installation's modules.

    And without the one by which each of the tests' many processes would compile the project anew.
    """
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {key: value for key, value in variables.items() if key not in left_out}


def candidates() -> Iterator[str]:
    """Interpreters that may be old enough for the oldest torch, by path; they need not exist or work."""
    for major, minor in OLDEST_PYTHONS:
        name = f"python{major}.{minor}"
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        yield from (str(path / "bin" / "python") for path in sorted((pyenv / "versions").glob(f"{major}.{minor}.*")))
        for folder in os.get_exec_path():
            if "shims" not in Path(folder).parts:  # pyenv's shims exist for versions that are not active, and fail
                yield str(Path(folder) / name)
    yield sys.executable


def find_oldest_python() -> str | None:
    """The oldest interpreter that can make an environment for the oldest torch; None if there is none."""
    probe = "import ensurepip, venv, sys; print(sys.version_info[0], sys.version_info[1])"
    for path in candidates():
        if not Path(path).is_file():
            continue
        result = subprocess.run(
            [path, "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if result.returncode == 0 and tuple(map(int, result.stdout.split())) in OLDEST_PYTHONS:
            return path
    return None


def test(arguments: Sequence[str]) -> int:
    """All tests, or those that `arguments` (pytest's) name.

    With `--oldest` those of the runtime that torch's version can change, on the oldest torch.
    """
    if "--oldest" not in arguments:
        MAIN.make()
        return MAIN.run("-m", "pytest", *workers(arguments), *arguments)
    base = find_oldest_python()
    if base is None:
        print("dev.py: test --oldest: skipped, there is no Python 3.9, 3.10 or 3.11 (with venv) for torch 2.1.0")
        return 0
    oldest = Environment(ROOT / ".venv-oldest", ("-e", ".", *OLDEST), base)
    oldest.make()
    rest = [argument for argument in arguments if argument != "--oldest"]
    return oldest.run("-m", "pytest", *workers(rest), *(rest or OLDEST_TESTS))


def workers(arguments: Sequence[str]) -> list[str]:
    """Options of pytest-xdist: all tests are run by a process per core and one more, as many of them wait.

    Some are run by one, as others take seconds to start. At most four: a few long tests take the time, and each process
    has ranks of its own.
    """
    some = any((ROOT / argument.partition("::")[0]).exists() for argument in arguments)
    return [] if some else ["-n", str(min(4, (os.cpu_count() or 1) + 1))]


def check(arguments: Sequence[str]) -> int:
    """Lint, formatting and types; every one runs, and the first that fails gives the exit code."""
    if arguments:
        raise SetupError(f"check takes no arguments (got {' '.join(arguments)})")
    MAIN.make()
    codes = [MAIN.run("-m", "ruff", "check"), MAIN.run("-m", "ruff", "format", "--check"), MAIN.run("-m", "mypy")]
    return next((code for code in codes if code), 0)


def docs(arguments: Sequence[str]) -> int:
    """Build the documentation site in build/docs; a warning (a link that leads nowhere) is an error."""
    MAIN.make()
    return MAIN.run("-m", "sphinx", "-W", "--keep-going", "-q", *arguments, "docs", "build/docs")


def demo(arguments: Sequence[str]) -> int:
    """Convert a fixture, train it before and after on two ranks, compare."""
    MAIN.make()
    return MAIN.run(str(ROOT / "fixtures" / "demo.py"), *arguments)


def dist(arguments: Sequence[str]) -> int:
    """Build both packages into dist/, wheels and sources, and check them as an index would."""
    if arguments:
        raise SetupError(f"dist takes no arguments (got {' '.join(arguments)})")
    MAIN.make()
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    for project in (ROOT, ROOT / "runtime"):
        code = MAIN.run("-m", "build", "--no-isolation", "--outdir", str(target), str(project))
        if code:
            return code
    return MAIN.run("-m", "twine", "check", "--strict", *(str(path) for path in sorted(target.iterdir())))


def gpu(arguments: Sequence[str]) -> int:
    """Whether training is exact on the GPUs at hand, in some minutes; without one it says so."""
    MAIN.make()
    return MAIN.run("benchmarks/gpu.py", *arguments)


def audit(arguments: Sequence[str]) -> int:
    """What dp2ddp brings along: a bill of materials, build/sbom.json, and known vulnerabilities."""
    if arguments:
        raise SetupError(f"audit takes no arguments (got {' '.join(arguments)})")
    MAIN.make()
    folder, bill = ROOT / "build" / "audit", ROOT / "build" / "sbom.json"
    uv, user = ("-m", "uv", "-q"), Environment(folder, ())
    code = (
        MAIN.run(*uv, "venv", "--clear", str(folder))
        or MAIN.run(*uv, "pip", "install", "--python", user.python, str(ROOT))
        or MAIN.run(
            *uv, "tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py", "environment", user.python, "-o", str(bill)
        )
    )
    if code:
        return code
    packages = next(folder.glob("**/site-packages"))
    return MAIN.run(*uv, "tool", "run", "pip-audit", "--progress-spinner", "off", "--path", str(packages))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    commands = {"demo": demo, "test": test, "check": check, "docs": docs, "dist": dist, "gpu": gpu, "audit": audit}
    parser = argparse.ArgumentParser(
        prog="dev.py",
        usage="dev.py [-h] {demo,test,check,docs,dist,gpu,audit} [arguments of the command]",
        description="Sets up .venv on its first run, then runs one of:",
        epilog="\n".join(f"  {name:6} {(command.__doc__ or '').splitlines()[0]}" for name, command in commands.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=commands, metavar="demo | test | check | docs | dist | gpu | audit")
    if sys.version_info < (3, 10):
        print(f"dev.py: needs Python 3.10 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    # Only the first word is this parser's: what follows belongs to the command, options included.
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(given[:1])
    try:
        return commands[options.command](given[1:])
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
