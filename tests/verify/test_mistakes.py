"""Mistakes planted into a right conversion: each is found, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from tiny import edited

from dp2ddp.verify.run.runs import Run

EPOCH = "    correct = total = 0\n"

#: text edits, the kind of the first finding, words of its cause, and the step (from 1) at which it is seen.
MISTAKES: dict[str, tuple[list[tuple[str, str]], str, str, int | None]] = {
    "a metric reduced twice": (
        [("correct += (output.argmax(1) == y).sum().item()",
          "correct += sum(ddp.gather((output.argmax(1) == y).sum().item()))")],
        "printed", "a number of one rank's rows, or one that is reduced twice (2 times the original's)", None,
    ),
    "a rank's own parameters": (  # behind the steps at which the runtime itself looks
        [("        output = net(x)",
          "        [p.data.add_(ddp.rank() * (epoch > 1 and len(x) < 8)) for p in net.parameters()]\n"
          "        output = net(x)")],
        "apart", "something that differs between the ranks", 9,
    ),
    "shuffle repeated": (
        [(EPOCH, EPOCH + "    torch.manual_seed(7)\n")], "shuffle", "the shuffle of iteration 1 is repeated", None,
    ),
    "checkpoint with other keys": (
        [("net.module.state_dict()", "net.state_dict()")], "keys", "the keys differ only by `module.`", None,
    ),
    "gradients doubled": (
        [("        optimizer.step()", "        [p.grad.mul_(2) for p in net.parameters()]\n        optimizer.step()")],
        "scale", "the gradients are 2 times the original's", 1,
    ),
    "loss scaled": (
        [("criterion(output, y)\n", "criterion(output, y) * 1.01\n")],
        "loss", "the loss is 1.01 times the original's", 1,
    ),
    "another loss": (
        [("criterion(output, y)\n", "criterion(output, y) + output.square().mean()\n")], "loss", "another loss", 1,
    ),
    "learning rate scaled": (
        [("lr=0.5", "lr=0.5 * ddp.world_size()")], "setting",
        "is 0.5, converted 1; the learning rate (lr) is multiplied by the number of ranks", 1,
    ),
    "another weight decay, late": (
        [(EPOCH, EPOCH + "    optimizer.param_groups[0]['weight_decay'] = 0.01 * (epoch > 1)\n")],
        "setting", "weight_decay of parameter group 1 of optimizer 1 is 0, converted 0.01", 7,
    ),
    "another optimizer": (
        [("torch.optim.SGD", "torch.optim.ASGD")], "setting", "of class SGD, converted ASGD; another optimizer", 1,
    ),
    "a layer frozen": (
        [("criterion =", "net.module[0].requires_grad_(False)\ncriterion =")], "setting", "a layer is frozen", 1,
    ),
    "gradients that add up": (
        [("        optimizer.zero_grad()\n", "")], "kept", "`zero_grad` is left out", 2,
    ),
    "a step left out": (
        [("        optimizer.step()", "        if len(x) == 8:\n            optimizer.step()")],
        "passed", "backward is called twice before this step, in the original once", 3,
    ),
    "a batch skipped": (
        [("        optimizer.zero_grad()",
          "        if len(x) < 8:\n            continue\n        optimizer.zero_grad()")],
        "passed", "batch 3 of iteration 1 over a loader is skipped", 3,
    ),
    "a smaller batch": (
        [("batch_size=8", "batch_size=4")], "batch", "smaller, of batch size 4, the original's 8", 1,
    ),
    "the last batch dropped": (
        [("batch_size=8", "batch_size=8, drop_last=True")], "batch", "the last batch of this pass is dropped", 3,
    ),
    "another sampler": (
        [("shuffle=True", "shuffle=False")], "batch", "sampler RandomSampler, converted SequentialSampler", 1,
    ),
    "other inputs": (
        [("output = net(x)", "output = net(x * 1.5)")], "input", "other samples: augmented, transformed", 1,
    ),
    "another mode": (
        [(EPOCH, EPOCH + "    net.train(epoch == 0)\n")],
        "mode", "runs in evaluation mode, the original's in training", None,
    ),
    "a draw too many": (
        [("        optimizer.step()", "        optimizer.step()\n        torch.rand(1)")],
        "draw", "a different RNG draw", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_planted_mistake_is_found_and_named(mistake: str, workplace: Path, original_run: Run, tmp_path: Path) -> None:
    edits, kind, cause, step = MISTAKES[mistake]
    other = tiny.run_converted(edited(*edits), workplace, tmp_path)
    _, findings = tiny.findings(original_run, other)
    first = findings[0]
    assert first.kind == kind, [str(finding) for finding in findings]
    assert cause in str(first)
    if step is not None:
        assert first.step == step


def test_the_right_conversion_has_none(workplace: Path, original_run: Run, tmp_path: Path) -> None:
    other = tiny.run_converted(tiny.converted(), workplace, tmp_path)
    comparison, findings = tiny.findings(original_run, other)
    assert findings == []
    assert len(comparison.steps) == 9
    assert comparison.original.files().keys() == comparison.converted.files().keys() == {"net.pt"}
    generators = [[step.generators for step in recording.steps] for recording in comparison.recordings]
    assert generators[1] == generators[2]
    torch_s = [[sums[0] for sums in side] for side in generators]
    assert torch_s[0] == torch_s[1]
