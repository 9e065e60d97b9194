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
        "printed", "a number of one rank's rows, or one that is reduced twice", None,
    ),
    "a rank's own parameters": (  # behind the steps at which the runtime itself looks
        [("        output = net(x)",
          "        [p.data.add_(ddp.rank() * (epoch > 1 and len(x) < 8)) for p in net.parameters()]\n"
          "        output = net(x)")],
        "output", "what Sequential returns on rank 1 differs by", 9,
    ),
    "shuffle repeated": (
        [(EPOCH, EPOCH + "    torch.manual_seed(7)\n")], "shuffle", "the shuffle of iteration 1 is repeated", None,
    ),
    "checkpoint with other keys": (
        [("net.module.state_dict()", "net.state_dict()")], "keys", "the keys differ only by `module.`", None,
    ),
    "gradients doubled": (
        [("        optimizer.step()", "        [p.grad.mul_(2) for p in net.parameters()]\n        optimizer.step()")],
        "gradient", "all gradients are 2 times the original's", 1,
    ),
    "loss scaled": (
        [("criterion(output, y)\n", "criterion(output, y) * 1.01\n")],
        "loss", "the loss is 1.01 times the original's", 1,
    ),
    "another loss": (
        [("criterion(output, y)\n", "criterion(output, y) + output.square().mean()\n")], "loss",
        "the loss given to backward is 0.534232, converted 0.701877", 1,
    ),
    "learning rate scaled": (
        [("lr=0.5", "lr=0.5 * ddp.world_size()")], "setting",
        "of optimizer 1 is 0.5, converted 1; it is multiplied by the number of ranks",
        1,
    ),
    "another weight decay, late": (
        [(EPOCH, EPOCH + "    optimizer.param_groups[0]['weight_decay'] = 0.01 * (epoch > 1)\n")],
        "setting", "weight decay of parameter group 1 of optimizer 1 is 0, converted 0.01", 7,
    ),
    "another optimizer": (
        [("torch.optim.SGD", "torch.optim.ASGD")], "setting", "'SGD', converted 'ASGD'; another optimizer", 1,
    ),
    "a layer frozen": (
        [("criterion =", "net.module[0].requires_grad_(False)\ncriterion =")], "setting", "a layer is frozen", 1,
    ),
    "gradients that add up": (
        [("        optimizer.zero_grad()\n", "")], "kept", "`zero_grad` is left out", 2,
    ),
    "a step left out": (
        [("        optimizer.step()", "        if len(x) == 8:\n            optimizer.step()")],
        "count", "batches that are taken before this step: 1, converted 2; a step is left out", 3,
    ),
    "a batch skipped": (
        [("        optimizer.zero_grad()",
          "        if len(x) < 8:\n            continue\n        optimizer.zero_grad()")],
        "count", "batches that are taken before this step: 1, converted 2; a step is left out", 3,
    ),
    "a smaller batch": (
        [("batch_size=8", "batch_size=4")], "batch", "the loader is made otherwise: batch size 8, converted 4", 1,
    ),
    "the last batch dropped": (
        [("batch_size=8", "batch_size=8, drop_last=True")], "batch", "drop_last False, converted True", 3,
    ),
    "another sampler": (
        [("shuffle=True", "shuffle=False")], "batch", "sampler RandomSampler, converted SequentialSampler", 1,
    ),
    "other inputs": (
        [("output = net(x)", "output = net(x * 1.5)")], "input", "of the same samples; they are augmented", 1,
    ),
    "another mode": (
        [(EPOCH, EPOCH + "    net.train(epoch == 0)\n")],
        "mode", "runs in training mode, converted in evaluation mode; `model.train()` is left out", None,
    ),
    "a draw too many": (
        [("        optimizer.step()", "        optimizer.step()\n        torch.rand(1)")],
        "batch", "the same samples in another order: shuffled by other random numbers", 4,
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
