"""What happens between steps: generators that are resumed ahead of each step, and once at the end; tags of `losses`.

`thaws` freezes layers for a while.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .blocks import WIDTH
from .parts import add

if TYPE_CHECKING:
    from .play import Run


@add("around", what=("scale", "clamp", "note", "none"), which=("all", "head"), removes=(False, True))
def hooks_on_parameters(run: Run, what: str, which: str, removes: bool) -> Iterator[None]:
    """Hooks on parameters' gradients."""
    hooks: dict[str, Any] = {
        "scale": lambda grad: grad * 0.5,
        "clamp": lambda grad: grad * (grad.abs() < 0.1),
        "note": lambda grad: run.note("a gradient", grad),
        "none": lambda grad: None,
    }
    params: list[Any] = run.trained() if which == "all" and what != "note" else run.trained()[-1:]
    handles = [param.register_hook(hooks[what]) for param in params]
    yield
    for handle in handles if removes else ():
        handle.remove()


@add("around", "accumulated_hooks", what=("note", "scale"))
def hooks_behind_accumulation(run: Run, what: str) -> Iterator[None]:
    """Hooks that run when .grad is there."""

    def hook(param: Any) -> None:
        if what == "note":
            run.note("accumulated", param.grad)
        else:
            param.grad.mul_(0.5)

    params: list[Any] = run.trained()
    for param in params[-1:] if what == "note" else params:
        param.register_post_accumulate_grad_hook(hook)
    yield


@add("around", what=("forward", "pre", "backward"))
def hooks_on_modules(run: Run, what: str) -> Iterator[None]:
    """Hooks on layers, which change what goes through them."""
    head = run.core().head
    if what == "forward":
        handle = head.register_forward_hook(lambda module, given, out: out * 1.5)
    elif what == "pre":
        handle = head.register_forward_pre_hook(lambda module, given: (given[0] + 0.1,))
    else:
        handle = head.register_full_backward_hook(lambda module, given, out: (given[0] * 0.5,))
    yield
    yield
    handle.remove()


@add("around", "thaws", what=("blocks", "head", "all but one"), late=(False, True))
def freezing(run: Run, what: str, late: bool) -> Iterator[None]:
    """Layers that are frozen for a while."""
    core = run.core()
    parts = {"blocks": list(core.blocks.parameters()), "head": list(core.head.parameters())}
    parts["all but one"] = [*parts["blocks"], core.head.weight]
    chosen = [param for param in parts[what] if param.requires_grad]
    if late:
        yield
    for param in chosen:
        param.requires_grad_(False)
    yield
    for param in chosen:
        param.requires_grad_(True)


@add("around", what=("layer", "parameter", "block", "data"), step=(1, 2))
def replacing(run: Run, what: str, step: int) -> Iterator[None]:
    """A layer, a parameter or its memory is replaced, or a layer is added; the optimizer is told."""
    for _ in range(step):
        yield
    core = run.core()
    if what == "layer":
        core.head = nn.Linear(WIDTH, WIDTH)
    elif what == "parameter":
        core.head.bias = nn.Parameter(torch.rand(WIDTH))
    elif what == "block":
        core.blocks.append(nn.Linear(WIDTH, WIDTH))
    else:
        core.head.weight.data = torch.rand(WIDTH, WIDTH)
    if what != "data":
        run.make_optimizers()


@add("around", mode=("no_grad", "inference_mode", "grad"), train=(False, True), again=(False, True))
def evaluating(run: Run, mode: str, train: bool, again: bool) -> Iterator[None]:
    """Phases without training in between."""
    grad: dict[str, Any] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}
    while True:
        run.nets[0].train(train)
        with grad[mode]():
            batch = run.batch()
            for _ in range(1 + again):
                out = run.forward(batch.x)
            run.note("evaluated", out)
            run.note("right", (out.argmax(1) == batch.labels[: len(out)]).float().mean())
        run.nets[0].train()
        yield


@add("around", "copies", what=("states", "file", "anew", "copy", "wrapped again"), step=(1, 2))
def resuming(run: Run, what: str, step: int) -> Iterator[None]:
    """Everything is saved and loaded, or is made a copy of, in the middle."""
    for _ in range(step):
        yield
    if what == "wrapped again":
        run.nets[0] = run.wrap(run.nets[0].module) if hasattr(run.nets[0], "module") else run.nets[0]
        return
    if what == "copy":
        run.nets[0] = copy.deepcopy(run.nets[0])
        run.make_optimizers()
        return
    kept: Any = {"net": run.nets[0].state_dict(), "optimizer": run.optimizers[0].state_dict()}
    if what == "states":
        kept = copy.deepcopy(kept)
        yield
    else:
        file = io.BytesIO()
        torch.save(kept, file)
        kept = torch.load(io.BytesIO(file.getvalue()))
    if what == "anew":
        run.nets[0] = run.build(0)
        run.make_optimizers()
    run.nets[0].load_state_dict(kept["net"])
    run.optimizers[0].load_state_dict(kept["optimizer"])


@add("around", "sparse_too", what=("step", "plateau", "by hand"))
def learning_rates(run: Run, what: str) -> Iterator[None]:
    """The learning rate changes, by itself or by what a parameter is."""
    while True:
        yield
        for group in run.optimizers[0].param_groups:
            by_hand = 0.5 + 0.1 * float(run.trained()[-1].detach().abs().mean())
            group["lr"] *= {"step": 0.9, "plateau": 0.5, "by hand": by_hand}[what]


@add("around", what=("clip", "scale", "normalize", "assign"))
def writing_weights(run: Run, what: str) -> Iterator[None]:
    """Weights are written between steps."""
    head = run.core().head
    while True:
        with torch.no_grad():
            for param in run.trained():
                if what == "clip" and not param.is_complex():
                    param.clamp_(-0.5, 0.5)
                elif what == "scale":
                    param.data.mul_(0.95)
            if what == "normalize":
                head.weight.div_(head.weight.norm(dim=1, keepdim=True) + 0.1)
            elif what == "assign":
                head.bias[0] = 0.25
        yield


@add("around", "copies", swaps=(False, True))
def averaging(run: Run, swaps: bool) -> Iterator[None]:
    """An average of the weights, made by hand; used for a step, perhaps."""
    average = copy.deepcopy(run.nets[0])
    while True:
        yield
        with torch.no_grad():
            for old, new in zip(average.state_dict().values(), run.nets[0].state_dict().values()):
                if old.is_floating_point() and old.shape == new.shape:
                    old.mul_(0.7).add_(new, alpha=0.3)
            net, run.nets[0] = run.nets[0], average.eval()
            run.note("averaged", run.forward(run.batch().x))
            run.nets[0] = net
        if swaps and run.step == 2:
            run.nets[0].load_state_dict(average.state_dict())


@add("around", what=("once", "half"), step=(1, 0))
def unused_for_a_while(run: Run, what: str, step: int) -> Iterator[None]:
    """In some steps there is another forward of which nobody takes gradients."""
    while True:
        if run.step >= step:
            out = run.forward(run.batch().x)
            if what == "half" and out.requires_grad:
                (out * 0).sum().backward()
        yield
