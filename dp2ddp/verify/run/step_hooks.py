"""Hooks that write down what a training script does, without changing it.

A recording is a folder with `events.jsonl`: one JSON object a line, written as things happen. Of parameters a few
numbers are kept (`state.sketch`). `recording` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any
from unittest import mock

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from dp2ddp.verify.run import scratch, state

# The modules that call the forward of a wrapped model.
_RUNNING_REPLICAS = ("dp2ddp_runtime.model", "dp2ddp.verify.emulate.oracle", "torch.nn.parallel.parallel_apply")


class Recorder:
    """Records one process in `folder`, and ends the script after so many `steps`, if a number is given."""

    def __init__(self, folder: Path, steps: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = steps
        self._events: IO[str] = (folder / "events.jsonl").open("w", buffering=1)
        self._work = str(folder.parent / "work")
        self._tops = tuple({str(folder.parent) + os.sep, str(folder.resolve().parent) + os.sep})
        self._step = 0
        self._iterators = self._calls = 0
        self._told: set[Any] = set()  # what is noted once
        self._now: Any = None  # before a step: the optimizer's settings and gradients
        self._known: dict[tuple[str, int], Any] = {}  # of each optimizer, what is written where it changes
        self._used: list[Optimizer] = []  # in the order of their first steps
        self._made: list[weakref.ref[Optimizer]] = []
        self._watching = ExitStack()

    def __enter__(self) -> Recorder:
        self._watching.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._watching.callback(register_optimizer_step_post_hook(self._after_step).remove)
        iterator = dataloader._BaseDataLoaderIter
        self._watch(Optimizer, "__init__", after=lambda _, made, *a, **k: self._made.append(weakref.ref(made)))
        self._watch(torch.autograd, "backward", before=self._on_backward)
        self._watch(torch.autocast, "__enter__", before=self._on_autocast)
        self._watch(iterator, "__init__", before=self._on_loader)
        self._watch(iterator, "_reset", after=lambda _, each, *args, **kwargs: self._number(each))
        self._watch(iterator, "_next_index", before=self._before_index, after=self._on_index)
        self._watch(iterator, "__next__", after=self._on_batch)
        self._watch(logging.Logger, "handle", before=self._on_log)
        return self

    def __exit__(self, *exception: object) -> None:
        self._watching.close()
        self._events.close()

    def note(self, kind: str, value: Any = True) -> None:
        """Notes, once, what `Recording.noted` holds."""
        if (kind, value) not in self._told:
            self._told.add((kind, value))
            self._write(kind, value=value)

    def split(self) -> None:
        """Notes that a wrapped model is called, whose replicas follow."""
        self._calls += 1
        self.note("split")

    def forward(self, module: Any, number: int, replica: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Calls a replica of a wrapped model, and notes with what, in which mode, its buffers, and what it gives.

        The replica, with its `number`, has the buffers; `call` is what is called.
        """
        modes = [module.training, sum(part.training for part in module.modules())]
        told = {"model": type(module).__name__, "call": self._calls, "replica": number, "modes": modes}
        # Running statistics. While it trains rank 0's count: a checkpoint's second run leaves other rows' elsewhere.
        buffers = replica.named_buffers() if not (number and module.training) else ()
        told["buffers"] = {name: state.norm(each) for name, each in buffers if each.is_floating_point()}
        given = [*map(state.sums, state.tensors_in((args, kwargs)))]
        output = call(*args, **kwargs)
        self._write("forward", **told, given=given, returned=[*map(state.sums, state.tensors_in(output))])
        return output

    def watch_replicas(self, kind: Any, rank: int) -> None:
        """Notes the calls of this rank's replicas: of the runtime's wrapped models, or of `DistributedDataParallel`."""
        name = "_run" if hasattr(kind, "_run") else "forward"  # (the runtime's is given what to call it with)
        original = getattr(kind, name)

        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            given = (args[1].args, args[1].kwargs) if name == "_run" else (args, kwargs)
            run = lambda *_, **__: original(model, *args, **kwargs)  # noqa: E731
            return self.forward(model.module, rank, model.module, run, *given)

        self._watching.enter_context(mock.patch.object(kind, name, watched))

    def wrote(self, path: str) -> None:
        """Notes a file below the working directory that this process opens to write, once."""
        name = os.path.relpath(os.path.realpath(path), os.path.realpath(self._work))
        is_scripts = not name.startswith(os.pardir) and not name.endswith((".pyc", scratch.COPY))
        if is_scripts and not self._events.closed:  # at the exit it is
            self.note("wrote", name)

    def _watch(
        self,
        owner: Any,
        name: str,
        before: Callable[..., object] = lambda *args, **kwargs: None,
        after: Callable[..., object] = lambda result, *args, **kwargs: None,
    ) -> None:
        """From now on `owner.name` calls `before` with what it is given, and `after` with what comes out, too."""
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            result = original(*args, **kwargs)
            after(result, *args, **kwargs)
            return result

        self._watching.enter_context(mock.patch.object(owner, name, watched))

    def _write(self, kind: str, **values: Any) -> None:
        """A line for `recording.Recording`, which says what each kind holds."""
        self._events.write(json.dumps({"kind": kind, "step": self._step, **values}) + "\n")

    def _at(self) -> str | None:
        """The script's own line that is running, as `train.py:12`; None where it isn't the script that runs."""
        for frame, line in traceback.walk_stack(sys._getframe(2)):
            if frame.f_code.co_filename.startswith(self._tops):
                return f"{os.path.relpath(frame.f_code.co_filename, self._work)}:{line}"
        return None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before its first step: what the optimizer starts from."""
        if optimizer not in self._used:
            self._used.append(optimizer)
            self._write("start", **self._parameters(optimizer), settings=[])
        self._now = state.settings(optimizer), state.gradients(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        (settings, gradients), parameters = self._now, self._parameters(optimizer)
        settings = self._if_changed("settings", parameters["optimizer"], settings)
        self._write("step", **parameters, settings=settings, gradients=gradients, at=self._at())
        self._step += 1
        if self._steps is not None and self._step >= self._steps:
            raise SystemExit(0)

    def _parameters(self, optimizer: Optimizer) -> dict[str, Any]:
        index = self._used.index(optimizer)
        tensors = [param.detach() for param in state.parameters(optimizer)]
        layout = [[str(tensor.dtype).rpartition(".")[2], list(tensor.shape)] for tensor in tensors]
        slots = self._if_changed("slots", index, layout)
        named = slots and [[name, *each] for name, each in zip(state.names(optimizer), slots)]
        return {"optimizer": index, "slots": named, "sketches": list(map(state.sketch, tensors))}

    def _if_changed(self, name: str, optimizer: int, value: Any) -> Any:
        """The value, or None if it is as it was."""
        if self._known.get((name, optimizer)) == value:
            return None
        self._known[name, optimizer] = value
        return value

    def _on_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        # Each replica has a loss of its own, and rank 0 has its own alone; a reentrant checkpoint's are no losses.
        callers = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_stack(sys._getframe(1)))
        if torch._C._current_graph_task_id() != -1 or any(name in _RUNNING_REPLICAS for name in callers):
            return
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        value = sum(float(tensor.detach().double().sum()) for tensor in given)
        made = enumerate(each() for each in self._made)
        kept = [number for number, each in made if each is not None and state.has_gradients(each)]
        self._write("loss", value=value, kept=kept, at=self._at())

    def _on_autocast(self, autocast: Any) -> None:
        if autocast._enabled:
            self.note("mixed", str(autocast.fast_dtype).rpartition(".")[2])

    def _on_log(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.pathname.startswith(self._tops):  # the script's own line, whoever shows it
            self._write("logged", value=record.getMessage())

    def _before_index(self, iterator: Any) -> None:
        """Ranks that find that samples draw load a batch once more, whole: what was loaded first doesn't count."""
        if getattr(iterator._index_sampler, "again", False):
            iterator._dp2ddp_taken -= 1

    def _on_index(self, index: Any, iterator: Any) -> None:
        """Workers fetch ahead, by their number: what nobody takes doesn't count."""
        if not hasattr(iterator, "_dp2ddp_fetched"):
            self._number(iterator)
        iterator._dp2ddp_fetched.append(index)

    def _on_batch(self, data: Any, iterator: Any) -> None:
        place = {"iterator": iterator._dp2ddp_number, "number": iterator._dp2ddp_taken}
        iterator._dp2ddp_taken += 1
        self._write("batch", **place, indices=state.plain(iterator._dp2ddp_fetched.popleft()), at=self._at())

    def _on_loader(self, iterator: Any, loader: Any) -> None:
        iterator._dp2ddp_loader = state.of_loader(loader)

    def _number(self, iterator: Any) -> None:
        """Number an iteration over a loader."""
        iterator._dp2ddp_number, iterator._dp2ddp_taken, iterator._dp2ddp_fetched = self._iterators, 0, deque()
        self._iterators += 1
        self._write("loader", iterator=iterator._dp2ddp_number, made_with=iterator._dp2ddp_loader)
