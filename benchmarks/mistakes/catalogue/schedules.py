"""Mistakes in how the learning rate goes on: a schedule that is stepped otherwise, or is another one."""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_LR = "learning rate, lr, schedule"

MISTAKES: list[Mistake] = [
    *kind(
        "scheduler stepped twice",
        _LR,
        plant(
            "iterations",
            "            scheduler.step()\n",
            "            scheduler.step()\n            scheduler.step()\n",
            3,
        ),
        plant("words", "        scheduler.step()\n", "        scheduler.step()\n        scheduler.step()\n", 5),
    ),
    *kind(
        "scheduler stepped elsewhere",
        _LR,
        # After each step rather than each epoch.
        plant(
            "resume",
            "                self.optimizer.step()\n",
            "                self.optimizer.step()\n                self.scheduler.step()\n",
            2,
            ("            self.scheduler.step()\n            print", "            print"),
        ),
        # After each epoch rather than each step.
        plant(
            "signals",
            "            scheduler.step()\n",
            "",
            2,
            ("        model.eval()\n", "        scheduler.step()\n        model.eval()\n"),
        ),
    ),
    *kind(
        "another schedule",
        _LR,
        plant("segment", "(1 - step / steps) ** 0.9", "(1 - step / steps) ** 2", 2),
        plant("iterations", "milestones=[4, 8]", "milestones=[2, 4]", 3),
        plant("mnist_loss_in_model", "step_size=3", "step_size=1", 4),
    ),
    *kind(
        "a state not loaded",
        "load, checkpoint, learning rate, lr, momentum, schedule, start",
        plant("resume", "        self.optimizer.load_state_dict(state['optimizer'])\n", "", 7),
        plant("resume", "        self.net.load_state_dict(state['net'])\n", "", 7),
        plant("resume", "        self.scheduler.load_state_dict(state['scheduler'])\n", "", 10),
    ),
]
