"""What a script settles before it trains, and what every process may do by itself before the processes have joined."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from dp2ddp.analysis.launch.effects import ASKS_TORCH, Effects, only_reads
from dp2ddp.analysis.roles import PARSING, Class, Function, Module, Resolver
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, given_to, keyword, names_in, parameters
from dp2ddp.source.program import FunctionNode, ParsedProgram

ARGUMENTS = "arguments"
DEVICES = "devices"
# What parses the arguments and then calls the function that it is given.
_COMMAND_LINES = frozenset(
    "fire.Fire absl.app.run typer.run tyro.cli plac.call argh.dispatch_command defopt.run jsonargparse.CLI "
    "jsonargparse.auto_cli clize.run".split()
)
# (Hydra parses them, and makes the folder of the run, where a function that it decorates is called.)
_PARSERS = _COMMAND_LINES | {"docopt.docopt", "hydra.main"}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OPENING = ("builtins.open", "io.open")
_QUESTIONS = frozenset({"exists", "isdir", "is_dir"})
# What the processes must not do each by itself: build models and data, take a GPU, draw, write, ask, start others...
_TOGETHER = tuple(
    "torch. torchvision. torchaudio. timm. transformers. random. numpy.random. numpy.save wandb. mlflow. neptune. "
    "comet_ml. visdom. tensorboard_logger. tensorboardX. logging.FileHandler logging.handlers. subprocess. os.system "
    "os.popen os.remove os.unlink os.rename os.replace os.rmdir os.symlink shutil. tempfile. sqlite3. h5py. threading. "
    "multiprocessing. concurrent. urllib. requests. builtins.input cv2.imwrite".split()
)
# ...and what is none of that. (A line that chooses the current GPU before the processes start goes.)
_ALONE = tuple(
    "torch.manual_seed torch.cuda.manual_seed torch.cuda.set_device torch.accelerator.set_device_index "
    "torch.from_numpy torch.tensor torch.as_tensor torch.zeros torch.ones torch.full torch.arange torch.linspace "
    "torch.eye torch.initial_seed torch.backends. torch.set_ torch.get_ torch.device torch.autograd. "
    "torch.use_deterministic_algorithms torch.multiprocessing.set_ torchvision.transforms. "
    "torchvision.set_ torchvision.get_ torchvision.disable_ transformers.HfArgumentParser transformers.logging. "
    "random.seed numpy.random.seed multiprocessing.set_ multiprocessing.cpu_count urllib.parse.".split()
)
#: Libraries that don't write into what they are given.
READERS = tuple(
    "builtins. torch. torchvision. logging. json. yaml. pprint. copy. os. sys. math. numpy. random. time. datetime. "
    "argparse. dataclasses. collections. pathlib. wandb. mlflow. tensorboardX. omegaconf. tqdm. platform. re.".split()
)
_READS_SETTINGS = re.compile(r"conf|cfg|option|args|pars|yaml|json", re.IGNORECASE)


class Settled:
    """Answers about statements, the script's own functions that they call included."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver, effects: Effects) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.effects = effects

    def settles(self, *nodes: ast.AST) -> frozenset[str]:
        """What statements settle that has to be known when processes start: the `ARGUMENTS`, the `DEVICES`."""
        return frozenset(kind for kind, _ in self.settling(*nodes))

    def settling(self, *nodes: ast.AST) -> list[tuple[str, ast.AST]]:
        """What of statements settles these."""
        if not self._settling:
            return []
        return [(self._settling[node], node) for node in self.effects.runs(*nodes) if node in self._settling]

    @cached_property
    def _settling(self) -> dict[ast.AST, str]:
        found = {}
        for node in self.source.nodes:
            if self._parses_arguments(node):
                found[node] = ARGUMENTS
            elif self._sets_devices(node):
                found[node] = DEVICES
        return found

    def _parses_arguments(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in PARSING:
            return not self._is_made_up(argument(node, 0, "args")) and not self.resolver.functions_called(
                node
            )  # the script's own: what it does is looked at by itself
        return self.names.qualified(node.func) in _PARSERS or self.handed(node) is not None

    def _is_made_up(self, given: ast.expr | None, passed: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether what is parsed is put together in the function, and no command line, which may say `--help`."""
        function = None if given is None else self.source.function(given)
        if isinstance(given, ast.BinOp):
            return self._is_made_up(given.left, passed) and self._is_made_up(given.right, passed)
        if function is None or not isinstance(given, ast.Name):
            return isinstance(given, (ast.List, ast.ListComp))
        if given.id in parameters(function):
            values = [self.resolver.given(call, function, given.id) for call in self.effects.callers.of(function)]
            return function not in passed and all(self._is_made_up(value, passed | {function}) for value in values)
        assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and names_in(n.targets[0]) == {given.id}]
        return bool(assigned) and not any("argv" in ast.unparse(each) for each in assigned)

    def _sets_devices(self, node: ast.AST) -> bool:
        """Whether a node decides which GPUs are visible."""
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return any(
                isinstance(t, ast.Subscript) and self._is_environ(t.value) and _names_devices(t) for t in targets
            )
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        is_setting = self.names.qualified(node.func) == "os.putenv" or (
            self._is_environ(node.func.value) and node.func.attr in ("update", "setdefault")
        )
        return is_setting and _names_devices(node)

    def _is_environ(self, node: ast.AST) -> bool:
        # (A library's `*` may bring `os` along.)
        return self.names.qualified(node) == "os.environ" or (
            self.names.qualified(node) is None and ast.unparse(node) == "os.environ"
        )

    def handed(self, call: ast.Call) -> FunctionNode | None:
        """The function of this script that leads to a wrap and that a library calls once it has parsed the arguments.

        `fire.Fire(main)`, and `cli()` where `main` is decorated with `@cli.command()`.
        """
        found = self.all_handed(call)
        return found[0] if len(found) == 1 else None

    def all_handed(self, call: ast.Call) -> list[FunctionNode]:
        """As `handed`, of a library that calls one of several, as the arguments say."""
        found: list[FunctionNode] = []
        if self.names.qualified(call.func) in _COMMAND_LINES:
            named = [role for value in given_to(call) for role in self.resolver.roles(value)]
            found = [role.definition for role in named if isinstance(role, Function)]
        elif isinstance(call.func, ast.Name) and not call.args:
            found = self._commands.get(call.func.id, [])
        return [function for function in found if self.effects.leads_to_a_wrap(function)]

    @cached_property
    def _commands(self) -> dict[str, list[FunctionNode]]:
        """The functions decorated with `@name.command(...)`, as click and typer have it, by that name."""
        found: dict[str, list[FunctionNode]] = {}
        for function in self.source.functions:
            for decorator in function.decorator_list:
                used = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(used, ast.Attribute) and used.attr == "command" and isinstance(used.value, ast.Name):
                    found.setdefault(used.value.id, []).append(function)
        return found

    # -- what every process may do by itself, before they know each other ------------------------------------------

    def repeatable(self, *nodes: ast.AST) -> bool:
        """Whether every process may run statements before they have joined, each by itself."""
        return not any(map(self._only_together, self.effects.runs(*nodes)))

    def _only_together(self, node: ast.AST) -> bool:
        """Whether a node builds, draws, or writes what there has to be one of."""
        if not isinstance(node, ast.Call):
            return False
        path = self.names.qualified(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) and not path else ""
        if self.effects.wraps(node) or self._builds_model(node) or method == "cuda":
            return True
        if path in _COMMAND_LINES:
            return self.runs_the_program(node)
        if path == "os.mkdir" or self._makes_folder(node):
            may_fail = any(isinstance(above, ast.Try) for above in self.source.ancestors(node))
            return not may_fail and not (self._makes_folder(node) and self._asks_first(node))
        if path.startswith("shutil.copy"):
            return not self._asks_first(node)  # a file that is missing: a plain start copies it before there are others
        if path in _OPENING:  # what all write alike, the launcher has written (`hold_early_files`)
            mode = argument(node, 1, "mode")
            return mode is not None and not (isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rwbtU"))
        if path == "logging.basicConfig":
            return keyword(node, "filename") is not None
        if path == "torch.load":  # `torch.load(args.resume)["config"]` reads settings
            part = self.source.parent(node)
            key = part.slice if isinstance(part, ast.Subscript) and part.value is node else None
            return not (isinstance(key, ast.Constant) and _READS_SETTINGS.search(str(key.value)))
        return path.startswith(_TOGETHER) and not (path.startswith(_ALONE) or ASKS_TORCH.fullmatch(path))

    def runs_the_program(self, node: ast.AST) -> bool:
        """Whether a call parses the arguments and goes on with a function that isn't known: `fire.Fire()`."""
        is_one = isinstance(node, ast.Call) and self.names.qualified(node.func) in _COMMAND_LINES
        return is_one and isinstance(self.source.parent(node), ast.Expr) and self.handed(node) is None  # type: ignore[arg-type]

    def makes_unknown(self, *nodes: ast.AST) -> bool:
        """Whether statements keep what unknown functions give, which by their names are no settings."""
        return any(map(self._makes_unknown, self.effects.runs(*nodes)))

    def _makes_unknown(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or isinstance(self.source.statement(node), ast.Expr):
            return False
        path = self.names.qualified(node.func)
        if self.resolver.functions_called(node) or (path is None and not isinstance(node.func, ast.Name)):
            return False
        return not (path or "").startswith(READERS) and not _READS_SETTINGS.search(ast.unparse(node.func))

    def _builds_model(self, call: ast.Call) -> bool:
        if self.resolver.holds(call.func, Module):
            return True
        classes = (role.definition for role in self.resolver.roles(call.func) if isinstance(role, Class))
        return any(map(self.resolver.classes.is_module, classes))

    def folders(self, *nodes: ast.AST) -> list[ast.Call]:
        """The calls with which statements make folders that several processes may miss at the same time."""
        runs = dict.fromkeys(n for n in self.effects.runs(*nodes) if isinstance(n, ast.Call))
        return [call for call in runs if self._makes_folder(call) and self._asks_first(call)]

    def read_back(self, *nodes: ast.AST) -> list[ast.Call]:
        """The calls with which statements copy files that are missing, or write what they read again."""
        runs = dict.fromkeys(n for n in self.effects.runs(*nodes) if isinstance(n, ast.Call))
        opened = [call for call in runs if self.names.qualified(call.func) in _OPENING and call.args]
        read = {ast.dump(call.args[0]) for call in opened if only_reads(call)}
        written = [call for call in opened if not only_reads(call) and ast.dump(call.args[0]) in read]
        return [*(c for c in runs if (self.names.qualified(c.func) or "").startswith("shutil.copy")), *written]

    def _makes_folder(self, call: ast.Call) -> bool:
        """Whether a call makes a folder that must not be there, or may not, as far as can be told."""
        method = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
        method = method and not self.resolver.functions_called(call)  # the script's own: looked at by itself
        path = self.names.qualified(call.func)
        if path == "os.mkdir":  # `os.makedirs` minds less
            return method and self._asks_first(call) and keyword(call, "dir_fd") is None
        may_exist = argument(call, 2, "exist_ok")
        is_fine = isinstance(may_exist, ast.Constant) and may_exist.value is True
        return (path == "os.makedirs" or (method and path is None)) and not is_fine

    def _asks_first(self, node: ast.AST) -> bool:
        """Whether a line runs only where a file or folder is missing."""
        tests = (above.test for above in self.source.ancestors(node) if isinstance(above, ast.If))
        return any(isinstance(n, ast.Attribute) and n.attr in _QUESTIONS for test in tests for n in ast.walk(test))


def _names_devices(node: ast.AST) -> bool:
    """Whether the environment's variable for the visible GPUs is named."""
    return any(
        (isinstance(part, ast.Constant) and part.value == _VISIBLE)
        or (isinstance(part, ast.keyword) and part.arg == _VISIBLE)
        for part in ast.walk(node)
    )
