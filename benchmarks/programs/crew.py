"""Ranks and an oracle that play one program after the other, and what comes of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from . import player
from .compare import first_difference
from .parts import Part
from .player import ORACLES, WRAP
from .spec import is_bound_to_the_cpu, precision

#: What the runtime says of programs that it knowingly doesn't run.
REFUSALS = (
    "a parameter with a hook got a gradient inside of",
    "a parameter got its gradient twice in one backward",
)
#: What torch's own `nn.DataParallel` says of programs that run when it is emulated: of tensors on the CPU while a model
#: isn't there, of arguments in different numbers of chunks, of complex gradients at odd places, of inference mode.
_TORCHS_OWN = (
    *("same device", "cuda", "CUDA"),
    *("missing 1 required positional argument", "The number of modules"),
    *("storage_offset divisible by 2", "version_counter for inference tensor"),
)
_GRACE = 1.0  # seconds for a rank to tell of its error, once another player has
Player = tuple[BaseProcess, Connection]


class Outcome(NamedTuple):
    """How a program came out.

    Attributes:
        kind: "agrees"; "raises" (all alike); "only the original raises"; "refused": ranks raise one of `REFUSALS`,
            which the oracle doesn't; "not comparable" with this oracle; "differs"; "hangs"; "fails": here, and not with
            the oracle, or with another error.
        text: what differs first, or the error.
    """

    kind: str
    text: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether the ranks did as the oracle."""
        return self.kind not in ("differs", "hangs", "fails")


class Crew:
    """A context: processes for programs of any number of ranks, started when needed, and anew after a failure.

    They are forks of one that has imported torch, since importing takes seconds.

    Args:
        oracle: one of `ORACLES`.
        against: another one, which plays instead of ranks.
        wrap: what wraps models on ranks, "module:name".
        patience: seconds for a program.
    """

    def __init__(
        self, oracle: str = "emulated", wrap: str = WRAP, patience: float = 20.0, against: str | None = None
    ) -> None:
        self._oracle, self._wrap, self._patience, self._against = oracle, wrap, patience, against
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "torch.distributed", "dp2ddp_runtime"])
        self._folder = tempfile.TemporaryDirectory()
        self._stores = 0
        self._ranks: dict[int, list[Player]] = {}
        self._judge: list[Player] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for players in (self._judge, *self._ranks.values()):
            _end(players)
        self._folder.cleanup()

    def play(self, spec: Part) -> Outcome:
        """Run a program everywhere, and compare.

        Raises:
            PretendCudaUnavailableError: torch's own `nn.DataParallel` can't be asked here.
        """
        if self._oracle == "torch" and is_bound_to_the_cpu(spec):
            return Outcome("not comparable", "autocast and random numbers are others on devices")
        ranks = spec["ranks"]
        if not self._judge:
            self._judge = [self._fork(-1, 1, "", ORACLES[self._oracle])]
        if ranks not in self._ranks:
            self._ranks[ranks] = self._start(ranks)
        pipes = [pipe for _, pipe in [*self._judge, *self._ranks[ranks]]]
        for pipe in pipes:
            pipe.send(spec.to_json())
        answers = self._answers(pipes)
        if not isinstance(answers[0], list):
            _end(self._judge)
        if not all(isinstance(answer, list) for answer in answers[1:]):
            _end(self._ranks.pop(ranks))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return self._judged(answers, spec)

    def _start(self, ranks: int) -> list[Player]:
        if self._against:
            return [self._fork(-1, 1, "", ORACLES[self._against])]
        self._stores += 1
        store = str(Path(self._folder.name, f"store{self._stores}"))
        return [self._fork(rank, ranks, store, self._wrap) for rank in range(ranks)]

    def _fork(self, *told: Any) -> Player:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=player.serve, args=(theirs, *told))
        process.start()
        theirs.close()
        return process, ours

    def _answers(self, pipes: Sequence[Connection]) -> list[Any]:
        """What each player has sent: a list of notes, an error; None of one that said nothing in time."""
        answers: dict[Any, Any] = {}
        end = time.monotonic() + self._patience
        while len(answers) < len(pipes):
            ready: list[Any] = wait([pipe for pipe in pipes if pipe not in answers], max(0.0, end - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                answers[pipe] = ("process", "the process died")
                with contextlib.suppress(EOFError, ConnectionResetError):
                    answers[pipe] = pipe.recv()
                if not isinstance(answers[pipe], list):
                    end = min(end, time.monotonic() + _GRACE)  # others may wait for it in vain
        return [answers.get(pipe) for pipe in pipes]

    def _judged(self, answers: list[Any], spec: Part) -> Outcome:
        wanted, *ranks = answers
        errors = [answer for answer in ranks if isinstance(answer, tuple)]
        if isinstance(wanted, tuple):
            if wanted[0] in {kind for kind, _ in errors}:
                return Outcome("raises", wanted[1])
            if self._oracle == "torch" and any(each in wanted[1].rpartition("Error: ")[2] for each in _TORCHS_OWN):
                return Outcome("not comparable", wanted[1])
            if not errors:
                return Outcome("only the original raises", wanted[1])
            return Outcome("fails", f"the oracle raised {wanted[1]}\nbut a rank raised {errors[0][1]}")
        if errors:
            # What tells of another rank's failure is the less telling one.
            text = min((text for _, text in errors), key=lambda text: "closed by peer" in text)
            refused = any(refusal in text for refusal in REFUSALS for _, text in errors)
            return Outcome("refused" if refused and wanted is not None else "fails", text)
        if None in answers:
            late = [place - 1 for place, answer in enumerate(answers) if answer is None]
            return Outcome("hangs", f"no answer of {late}")
        found = first_difference(ranks, wanted, precision(spec))
        return Outcome("agrees") if found is None else Outcome("differs", found)


def _end(players: list[Player]) -> None:
    for process, pipe in players:
        process.kill()
        process.join()
        pipe.close()
    players.clear()
