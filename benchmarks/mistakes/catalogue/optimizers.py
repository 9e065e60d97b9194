"""Mistakes in what an optimizer is, what it is given, and when it steps.

With momentum, with Adam's betas, the first update is still the original's: its buffers begin at nothing.
"""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_FLIPS = "optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)"
_SEGMENT = "torch.optim.Adam(model.parameters(), lr=opt.lr, betas=(0.9, 0.99), weight_decay=1e-4)"
_SIGNALS = "torch.optim.AdamW(model.parameters(), lr=args.max_lr, weight_decay=0.05)"
_TRIPLETS = "torch.optim.Adagrad(model.parameters(), lr=args.lr, weight_decay=1e-3)"
_STOPPING = "torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.9, weight_decay=1e-3)"
_GAN_D = "optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))"

_SETTINGS = [
    *kind(
        "lr scaled by world size",
        "learning rate, lr",
        plant("flips", _FLIPS, _FLIPS.replace("args.lr", "args.lr * ddp.world_size()"), 1),
        plant("gan", _GAN_D, _GAN_D.replace("opt.lr", "opt.lr * ddp.world_size()"), 2, seen=1),
        plant("mnist_script", "lr=args.lr, momentum", "lr=args.lr * ddp.world_size(), momentum", 1),
    ),
    *kind(
        "lr times a constant",
        "learning rate, lr",
        plant("segment", "lr = base * (1 - step", "lr = 0.5 * base * (1 - step", 1),
        plant("signals", "optimizer, max_lr=args.max_lr", "optimizer, max_lr=args.max_lr * 1.1", 1),
        plant("accumulate", "lr=args.lr, momentum", "lr=args.lr / 10, momentum", 1),
    ),
    *kind(
        "weight decay changed",
        "weight decay, weight_decay",
        plant("signals", _SIGNALS, _SIGNALS.replace("0.05", "0.0"), 1),
        plant("accumulate", "'weight_decay': 0.0", "'weight_decay': 1e-2", 1),
        # RMSprop divides by the gradient's size: at first only what has next to none is moved otherwise.
        plant("stopping", _STOPPING, _STOPPING.replace(", weight_decay=1e-3", ""), 2, seen=1),
    ),
    *kind(
        "momentum or betas changed",
        "momentum, beta, nesterov",
        plant("imagenet", "momentum=args.momentum", "momentum=args.momentum / 2", 2, seen=1),
        plant("iterations", "betas=(0.9, 0.95)", "betas=(0.8, 0.95)", 2, seen=1),
    ),
    *kind(
        "another optimizer",
        "another optimizer, other optimizer, different optimizer, kind of optimizer, AdamW, RMSprop, Adagrad",
        plant("signals", "torch.optim.AdamW(", "torch.optim.Adam(", 1),
        plant("triplets", _TRIPLETS, "torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=1e-3)", 1),
    ),
]

_PARAMETERS = [
    *kind(
        "optimizer over other parameters",
        "other parameters, parameters of, fewer parameters, parameter group, group, optimizer's parameters",
        plant(
            "segment",
            "torch.optim.Adam(model.parameters()",
            "torch.optim.Adam([p for name, p in model.named_parameters() if 'head' not in name]",
            1,
        ),
        plant(
            "resume",
            "torch.optim.NAdam(self.net.parameters()",
            "torch.optim.NAdam([p for p in self.net.parameters() if p.ndim > 1]",
            1,
        ),
        plant("denoise", "optim.SGD(encoder.parameters()", "optim.SGD(encoder.module[0].parameters()", 1),
    ),
    *kind(
        "a layer frozen",
        "no gradient, without a gradient, frozen, requires_grad, not trained",
        plant(
            "imagenet",
            "    criterion = nn.CrossEntropyLoss().cuda()\n",
            "    model.module.features.requires_grad_(False)\n    criterion = nn.CrossEntropyLoss().cuda()\n",
            1,
        ),
        plant(
            "iterations",
            "    criterion = nn.CrossEntropyLoss(reduction='mean')\n",
            "    model.module[0].requires_grad_(False)\n    criterion = nn.CrossEntropyLoss(reduction='mean')\n",
            1,
        ),
    ),
]

_STEPS = [
    *kind(
        "an optimizer step skipped",
        "skipped, left out, fewer, missing, no step",
        plant(
            "flips",
            "        optimizer.step()\n",
            "        if targets.size(0) == args.batch_size:\n            optimizer.step()\n",
            4,
        ),
        plant(
            "iterations",
            "            optimizer.step()\n",
            "            if iteration != 6:\n                optimizer.step()\n",
            7,
        ),
        plant("gan", "        optimizer_D.step()\n", "        if i:\n            optimizer_D.step()\n", 2),
    ),
    *kind(
        "zero_grad left out",
        "zero_grad, accumulat, cleared, zeroed, adds up, added up",
        plant("triplets", "            optimizer.zero_grad()\n", "", 2),
        # The generator's step has left gradients in the discriminator.
        plant("gan", "        optimizer_D.zero_grad()\n", "", 2),
    ),
    *kind(
        "gradients of another number of batches",
        "accumulat, number of batches, fewer batches, more batches, backward",
        plant("accumulate", "if (i + 1) % args.accum == 0:", "if (i + 1) % (args.accum * ddp.world_size()) == 0:", 1),
        plant("mnist_amp_accumulate", "(i + 1) % self.cfg.accumulate == 0", "(i + 1) % 3 == 0", 1),
    ),
]

MISTAKES: list[Mistake] = [*_SETTINGS, *_PARAMETERS, *_STEPS]
