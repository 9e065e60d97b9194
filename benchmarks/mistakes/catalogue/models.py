"""Mistakes in the model: what is wrapped, its layers, its modes, how it begins."""

from __future__ import annotations

from ..planted import Mistake, kind, plant

# Without a wrap the whole batch goes through the model at once: BatchNorm's statistics are another's, dropout draws
# otherwise. (Of a model that has neither, training would be the same.)
_WRAP = "wrap, not split, replica, statistics, BatchNorm, whole batch"
_MODE = "eval, training mode, train mode, mode, dropout, BatchNorm, statistics, running, buffer"

_PARALLEL = """\
            output = ddp.data_parallel(self.main, input, range(self.ngpu))
        else:
            output = self.main(input)
        return output
"""

_WRAPS = [
    *kind(
        "wrap forgotten",
        _WRAP,
        plant("segment", "ddp.wrap_model(UNet().cuda())", "UNet().cuda()", 1, ("model.module.state", "model.state")),
        plant("mnist_files", "        model = ddp.wrap_model(model)\n", "", 1),
    ),
    *kind(
        "one of two models left over",
        _WRAP,
        plant("gan", "ddp.wrap_model(Discriminator().cuda())", "Discriminator().cuda()", 1),
        plant("denoise", "ddp.wrap_model(encoder.to(device))", "encoder.to(device)", 1, ("encoder.module", "encoder")),
    ),
    *kind(
        "DataParallel left in",
        f"{_WRAP}, DataParallel",
        plant("signals", "ddp.wrap_model(make_model())", "nn.DataParallel(make_model()).cuda()", 1),
        plant(
            "stopping", "ddp.wrap_model(get_model(args.dropout))", "nn.DataParallel(get_model(args.dropout)).cuda()", 1
        ),
    ),
    *kind(
        "a guard flipped",
        f"{_WRAP}, guard, module., keys",
        plant("flips", "if torch.cuda.device_count() > 1:", "if torch.cuda.device_count() == 1:", 1),
        plant(
            "mnist_trainer",
            'if torch.cuda.device_count() > 1:\n            print(f"Using',
            'if torch.cuda.device_count() > 2:\n            print(f"Using',
            1,
        ),
    ),
    *kind(
        "BatchNorm over all ranks",
        _WRAP,
        plant("flips", "net = ddp.wrap_model(net)", "net.fc = ddp.wrap_model(net.fc)", 1),
        plant(
            "mnist_gan",
            _PARALLEL,
            _PARALLEL.replace("ddp.data_parallel(self.main, input, range(self.ngpu))", "self.main(input)"),
            1,
        ),
    ),
]

_LAYERS = [
    *kind(
        "BatchNorm's momentum changed",
        "buffer, running, statistics, BatchNorm, momentum",
        # What it trains with are the batch's statistics: only what it evaluates with, and saves, is another.
        plant(
            "flips",
            "nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)",
            "nn.BatchNorm2d(8, momentum=0.01), nn.ReLU(), nn.MaxPool2d(2)",
            None,
        ),
        plant(
            "signals",
            "padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d",
            "padding=2), nn.BatchNorm1d(8, momentum=0.5), nn.ReLU(), nn.MaxPool1d",
            None,
        ),
    ),
    *kind(
        "dropout changed",
        "dropout, draw, random, forward",
        plant("segment", "nn.Dropout2d(0.2)", "nn.Dropout2d(0.1)", 1),
        plant("stopping", "get_model(args.dropout)", "get_model(2 * args.dropout)", 1),
    ),
    *kind(
        "buffers changed on one rank",
        "buffer, running, statistics, BatchNorm, rank",
        plant(
            "flips",
            "    net.eval()\n",
            "    net.eval()\n    if ddp.is_main():\n        net.module.features[1].running_mean.zero_()\n",
            None,
        ),
        plant(
            "iterations",
            "                model.eval()\n",
            "                model.eval()\n                if ddp.is_main():\n"
            "                    model.module[1].running_mean.fill_(9.0)\n",
            None,
        ),
    ),
]

_MODES = [
    *kind(
        "model.train() left out",
        _MODE,
        plant("segment", "        model.train()\n", "", 6),
        plant("resume", "            self.net.train()\n", "", 4),
        plant("stopping", "        model.train()\n", "", 4),
    ),
    *kind(
        "model.eval() left out",
        _MODE,
        plant("flips", "    net.eval()\n", "", None),
        # These drop, too: what is drawn in an evaluation isn't there for the next epoch.
        plant("segment", "    model.eval()\n", "", 6),
        plant("signals", "        model.eval()\n", "", 5),
    ),
]

_BEGINNINGS = [
    *kind(
        "weights initialised per rank",
        "initialis, start, differs between the ranks, differ between ranks, each rank, weights",
        plant(
            "flips",
            "criterion = nn.CrossEntropyLoss()\n",
            "torch.manual_seed(ddp.rank())\nnet.module.fc.reset_parameters()\ncriterion = nn.CrossEntropyLoss()\n",
            1,
        ),
        plant(
            "iterations",
            "    criterion = nn.CrossEntropyLoss(reduction='mean')\n",
            "    if ddp.is_main():\n        model.module[0].reset_parameters()\n"
            "    criterion = nn.CrossEntropyLoss(reduction='mean')\n",
            1,
        ),
        fails=True,
    ),
    *kind(
        "weights initialised otherwise",
        "initialis, start, weights",
        plant("accumulate", "    net = Net().cuda()\n", "    net = Net().cuda()\n    nn.init.zeros_(net.fc.bias)\n", 1),
        plant(
            "mnist_vae",
            "model = ddp.wrap_model(VAE(args.latent))",
            "torch.manual_seed(5)\nmodel = ddp.wrap_model(VAE(args.latent))",
            1,
        ),
    ),
]

MISTAKES: list[Mistake] = [*_WRAPS, *_LAYERS, *_MODES, *_BEGINNINGS]
