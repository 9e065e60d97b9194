"""Scripts that set up distributed training themselves, and scripts that dp2ddp has converted already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.analysis.replicas import Blocker
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import last_name
from dp2ddp.source.program import FUNCTIONS, File, ParsedProgram
from dp2ddp.source.spans import Span

#: What starts processes by itself, by the full name of what is imported or used, or of a package above it.
_FRAMEWORKS = {
    "accelerate": "Accelerate",
    "catalyst.dl": "Catalyst",
    "catalyst.runners": "Catalyst",
    "deepspeed": "DeepSpeed",
    "fastai": "fastai",
    "horovod.torch.init": "Horovod",
    "ignite.distributed": "Ignite's `distributed`",
    "lightning": "Lightning",
    "lightning_fabric": "Lightning Fabric",
    "mmcv.runner.EpochBasedRunner": "MMCV's runner",
    "mmcv.runner.IterBasedRunner": "MMCV's runner",
    "mmcv.runner.Runner": "MMCV's runner",
    "mmcv.runner.build_runner": "MMCV's runner",
    "mmcv.runner.init_dist": "MMCV's runner",
    "mmengine.Runner": "MMEngine's runner",
    "mmengine.runner.Runner": "MMEngine's runner",
    "pytorch_lightning": "Lightning",
    "torch.distributed.fsdp": "FSDP",
    "transformers.Seq2SeqTrainer": "Hugging Face's `Trainer`",
    "transformers.Trainer": "Hugging Face's `Trainer`",
    "ray.init": "Ray",
    "ray.remote": "Ray",
    "ray.train": "Ray",
    "ray.tune": "Ray",
    "trl": "Hugging Face's TRL",
}
_PACKAGES = tuple({name.split(".")[-1 if name.startswith("torch.") else 0] for name in _FRAMEWORKS})
_WRAPPER = "DistributedDataParallel"
_JOIN = "init_process_group"
_SAMPLER = "DistributedSampler"
#: By what scripts ask whether they set up DDP themselves.
_ASKS_FOR_DDP = re.compile(r"distributed|\bdist\b|rank|\bddp\b|world_size|multiprocessing", re.IGNORECASE)
#: What to do with the script's own distributed training.
_BESIDE = "start that as before; --allow-ddp converts the rest, unless more is named here"
_FRAMEWORK = "it starts a process on each GPU by itself: leave nn.DataParallel out, and start the script as it says"


def is_converted(file: File) -> bool:
    """Whether a file calls dp2ddp's runtime already."""
    if RUNTIME_PACKAGE not in file.text:
        return False
    return any(name.split(".")[0] == RUNTIME_PACKAGE for node in ast.walk(file.tree) for name in _imported(node))


def blockers(source: ParsedProgram, names: Names, *, allow_ddp: bool) -> Iterator[Blocker]:
    """Where a program first sets up distributed training itself, by a framework and by torch's own means.

    `isinstance(model, DistributedDataParallel)` alone sets up nothing. With `allow_ddp` torch's own means are allowed.
    """
    framework = _frameworks(source.nodes if any(map(source.mentions, _PACKAGES)) else (), names)
    own = ((call, f"calls {name}") for call, name in _set_up(source, names) if not allow_ddp)
    for found, todo in ((framework, _FRAMEWORK), (own, _BESIDE)):
        first = min(found, key=lambda each: each[0].lineno, default=None)
        if first is not None:
            yield Blocker(first[0], f"sets up distributed training already: {first[1]}", todo)


def _frameworks(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Each node that brings in a framework that starts processes, and what it does."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found, verb = [names.qualified(node) or ""], "uses"
        else:
            found, verb = list(_imported(node)), "imports"
        for name in found:
            framework = _framework(name)
            if framework:
                yield node, f"{verb} {framework}"  # type: ignore[misc]


def _framework(name: str) -> str | None:
    """What starts processes: `name` itself, or a package above it."""
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((_FRAMEWORKS[path] for path in above if path in _FRAMEWORKS), None)


def _imported(node: ast.AST) -> Iterator[str]:
    """The full names of what `node` imports, if it is an import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


# ---- beside DataParallel (--allow-ddp) -------------------------------------------------------------------------------


def is_present(source: ParsedProgram, names: Names) -> bool:
    """Whether a program sets up distributed training itself."""
    return any(_set_up(source, names))


def _set_up(source: ParsedProgram, names: Names) -> Iterator[tuple[ast.Call, str]]:
    """The calls that do, and what they call."""
    return ((call, name) for call in source.calls if (name := _called(names, call)) in (_JOIN, _WRAPPER))


def _called(names: Names, call: ast.Call) -> str:
    """What is called, by its own name: `DistributedDataParallel` where it is imported as `DDP`."""
    return (names.qualified(call.func) or last_name(call.func)).rpartition(".")[-1]


def own_spans(source: ParsedProgram, names: Names) -> list[Span]:
    """The statements of its branches for its own distributed training: they stay as they are."""
    blocks: dict[int, list[ast.stmt]] = {}
    for call in source.calls:
        path = names.qualified(call.func) or ""
        is_sign = _called(names, call) in (_JOIN, _WRAPPER, _SAMPLER) or path.startswith("torch.distributed.")
        block = _own_block(source, names, call) if is_sign else None
        if block is not None:
            blocks[id(block)] = block
    return [source.span(statement) for block in blocks.values() for statement in block]


def _own_block(source: ParsedProgram, names: Names, call: ast.Call) -> list[ast.stmt] | None:
    """The outermost branch around a call whose test asks for distributed training, and that wraps nothing else."""
    found: list[ast.stmt] | None = None
    node: ast.AST = call
    for above in source.ancestors(call):
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            break
        if isinstance(above, ast.If) and node is not above.test:
            block = above.body if node in above.body else above.orelse
            calls = (n for statement in block for n in ast.walk(statement) if isinstance(n, ast.Call))
            if any(names.qualified(each.func) == "torch.nn.DataParallel" for each in calls):
                break
            if _ASKS_FOR_DDP.search(ast.unparse(above.test)):
                found = block
        node = above
    return found
