"""Values that each rank has for itself (the time, its process id, a random name) and that end in a path or a seed.

Where such a value only tells how long something took, or is printed, nothing needs to agree. But a checkpoint that
rank 0 saved under its own time is never found under another rank's, and by a seed of the clock's the ranks diverge.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from dp2ddp.analysis.dataflow.ingredients import Ingredients
from dp2ddp.analysis.launch.before import BeforeLaunch
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument
from dp2ddp.source.program import ParsedProgram

_OWN = frozenset(
    "time.time time.time_ns time.strftime time.ctime time.asctime time.localtime time.gmtime datetime.datetime.now "
    "datetime.datetime.today datetime.datetime.utcnow datetime.date.today uuid.uuid1 uuid.uuid4 os.getpid os.getppid "
    "os.urandom socket.gethostname socket.getfqdn platform.node secrets.token_hex secrets.token_urlsafe "
    "secrets.randbelow secrets.randbits".split()
)
#: What makes a name or a folder that stays; of other temporary files another rank's name is worth nothing.
_STAYING = frozenset({"tempfile.mkdtemp", "tempfile.mktemp"})
_PATH_MODULES = ("os.path.", "pathlib.", "shutil.", "glob.")
_PATHS = frozenset("os.makedirs os.mkdir os.chdir os.listdir os.scandir os.walk os.remove os.rename os.replace".split())
_PATH_AT = {
    "builtins.open": (0, "file"),
    "io.open": (0, "file"),
    "torch.save": (1, "f"),
    "torch.load": (0, "f"),
    "torch.utils.tensorboard.SummaryWriter": (0, "log_dir"),
    "torchvision.utils.save_image": (1, "fp"),
    "logging.FileHandler": (0, "filename"),
    "numpy.save": (0, "file"),
    "numpy.load": (0, "file"),
    "numpy.savez": (0, "file"),
    "numpy.savetxt": (0, "fname"),
    "matplotlib.pyplot.savefig": (0, "fname"),
}
_SEEDS = frozenset(
    "random.seed random.Random numpy.random.seed numpy.random.default_rng numpy.random.RandomState torch.manual_seed "
    "torch.cuda.manual_seed torch.cuda.manual_seed_all".split()
)
_METHODS = frozenset({"manual_seed", "savefig", "mkdir", "joinpath", "write_text", "to_csv"})
_HOLDING = (ast.Name, ast.Attribute, ast.Subscript)
_KEYWORDS = frozenset("seed random_state filename log_dir logdir save_dir out_dir output_dir run_dir".split())


@dataclass
class OwnValues:
    """Where values of a rank's own come from that end in paths and seeds.

    Attributes:
        shared: calls that make temporary files and folders which have to be one for all ranks.
        values: expressions that have to be rank 0's, in the order of the text. They run after the launch: what is taken
            before it is named where it is used.
        files: calls that make a file or folder on each rank where there should be one.
    """

    source: ParsedProgram
    names: Names
    before: BeforeLaunch
    launches: Sequence[Launch]
    ingredients: Ingredients
    shared: Collection[ast.Call]
    values: list[ast.expr] = field(default_factory=list)
    files: list[ast.expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = [c for c in self.source.calls if self.names.qualified(c.func) in _OWN or c in self.shared]
        if not made:
            return
        before = self.before.nodes(*self.launches)
        ends = [end for end in self._ends() if end not in before]
        for node in sorted(self._origins(ends, made, before), key=lambda n: (n.lineno, n.col_offset)):
            is_file = node in self.shared and not self._stays(node)
            (self.files if is_file else self.values).append(self._with_methods(node))

    def _origins(
        self, ends: Collection[ast.expr], made: Collection[ast.expr], before: Collection[ast.AST]
    ) -> set[ast.expr]:
        """What goes into the values of `ends`: of `made` what runs after the launch, or what holds an earlier one."""
        early = {call for call in made if call in before}
        holding: set[ast.expr] = set()
        if early:
            loads = (n for n in self.source.nodes if isinstance(n, _HOLDING) and isinstance(n.ctx, ast.Load))
            for node in loads:
                earlier = [] if node in before else [v for v in self.ingredients.held(node) if v in before]
                if self.ingredients.reached(earlier, early):
                    holding.add(node)
        return self.ingredients.reached(ends, holding.union(made).difference(early))

    def _stays(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self.names.qualified(node.func) in _STAYING

    # -- where values end ----------------------------------------------------------------------------------------------

    def _ends(self) -> Iterator[ast.expr]:
        """The expressions that are paths or seeds."""
        for call in self.source.calls:
            path = self.names.qualified(call.func) or ""
            place = _PATH_AT.get(path)
            if place is not None:
                given = argument(call, *place)
                yield from [given] if given is not None else []
            elif path in _PATHS | _SEEDS or path.startswith(_PATH_MODULES):
                yield from call.args
            elif not path and isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
                yield from (call.func.value, *call.args)
            yield from (k.value for k in call.keywords if k.arg in _KEYWORDS)

    def _with_methods(self, node: ast.expr) -> ast.expr:
        """A call with the methods and attributes of its value: `datetime.now()` with `.strftime(...)`."""
        above = self.source.parent(node)
        while isinstance(node, ast.Call) and isinstance(above, ast.Attribute) and above.value is node:
            outer = self.source.parent(above)
            is_call = isinstance(outer, ast.Call) and outer.func is above
            node = outer if is_call else above  # type: ignore[assignment]
            above = self.source.parent(node)
        return node
