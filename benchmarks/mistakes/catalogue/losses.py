"""Mistakes in losses and gradients: scaled, reduced by hand, of one rank's rows, clipped otherwise."""

from __future__ import annotations

from ..planted import Mistake, kind, plant


def _averaged(indent: str, model: str) -> str:
    """Lines that average the ranks' gradients."""
    return f"{indent}for p in {model}.parameters():\n{indent}    p.grad = sum(ddp.gather(p.grad)) / ddp.world_size()\n"


_SCALED = "scaled, times, factor, half"

MISTAKES: list[Mistake] = [
    *kind(
        "loss scaled",
        _SCALED,
        plant("flips", "        loss.backward()\n", "        (loss * ddp.world_size()).backward()\n", 1),
        plant("imagenet", "        loss.backward()\n", "        (loss / ddp.world_size()).backward()\n", 1),
        plant("mnist_loss_in_model", "loss = loss.mean()", "loss = loss.sum()", 1),
    ),
    *kind(
        "gradients reduced twice",
        f"{_SCALED}, twice",
        plant(
            "accumulate",
            "                optimizer.step()\n",
            "                for p in net.parameters():\n                    p.grad = sum(ddp.gather(p.grad))\n"
            "                optimizer.step()\n",
            1,
        ),
        plant(
            "mnist_functions",
            "        optimizer.step()\n",
            "        for p in model.parameters():\n            p.grad /= ddp.world_size()\n        optimizer.step()\n",
            1,
        ),
    ),
    *kind(
        "another loss",
        "another loss, other loss, criterion, loss given",
        plant("signals", "label_smoothing=0.1", "label_smoothing=0.0", 1),
        plant("triplets", "margin=args.margin)", "margin=args.margin / 2)", 1),
        plant("stopping", "nn.MSELoss()", "nn.L1Loss()", 1),
    ),
    *kind(
        "loss of one rank's rows",
        "rank's rows, own rows, one rank, each rank, ranks",
        plant(
            "imagenet",
            "        loss = criterion(output, target)\n        losses.update(loss.item(), images.size(0))\n",
            "        own = slice(ddp.rank(), None, ddp.world_size())\n"
            "        loss = criterion(output[own], target[own])\n        losses.update(loss.item(), images.size(0))\n",
            1,
        ),
        plant(
            "stopping",
            "            loss = criterion(model(inputs), targets)\n",
            "            loss = criterion(model(inputs).chunk(2)[ddp.rank()], targets.chunk(2)[ddp.rank()])\n",
            1,
        ),
        fails=True,
    ),
    # Each rank clips the gradients of its rows; these are averaged then.
    *kind(
        "gradients clipped before averaging",
        "clip, norm, rank's rows, own rows",
        plant(
            "signals",
            "criterion(model(x), y)",
            "criterion(model.module(x.chunk(2)[ddp.rank()]), y.chunk(2)[ddp.rank()])",
            1,
            (
                "model.parameters(), args.clip)\n",
                "model.parameters(), args.clip)\n" + _averaged("            ", "model"),
            ),
        ),
        plant(
            "mnist_loss_in_model",
            "\t\t\tloss.backward()\n",
            "\t\t\town = [each.chunk(ddp.world_size())[ddp.rank()] for each in (images, targets)]\n"
            "\t\t\tmodel.module(*own)[0].backward()\n",
            3,  # the first whose gradients are long enough to be clipped
            ("model.parameters(), clip)\n", "model.parameters(), clip)\n" + _averaged("\t\t\t", "model")),
        ),
    ),
    *kind(
        "clipped otherwise",
        "clip, norm, times, scaled",
        plant("mnist_loss_in_model", "model.parameters(), clip)", "model.parameters(), clip / 10)", 1),
        # Of the first gradient Adam takes little but the signs.
        plant("words", "            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n", "", 2, seen=1),
    ),
]
