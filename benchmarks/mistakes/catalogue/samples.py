"""Mistakes in what a sample is: augmented otherwise, of other data, of another split."""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_SAMPLE = "sample, augment, input, transform, other data"

MISTAKES: list[Mistake] = [
    *kind(
        "augmentation changed",
        _SAMPLE,
        plant("flips", "if torch.rand(1).item() < 0.5:", "if torch.rand(1).item() < 0.1:", 1),
        plant("imagenet", "transforms.RandomHorizontalFlip(), ", "", 1),
        plant("signals", "wave = wave + 0.1 * np", "wave = wave + 0.3 * np", 1),
        plant("gan", "image.flip(-1) if torch.rand(()) < 0.5 else image", "image", 1),
    ),
    *kind(
        "augmentation left out",
        _SAMPLE,
        plant("accumulate", "Pictures(64, True)", "Pictures(64, False)", 1),
        plant("denoise", "clean + self.sigma * torch.randn(20), clean", "clean, clean", 1),
    ),
    *kind(
        "augmentation in the evaluation",
        f"{_SAMPLE}, draw, random",
        # Here it draws in the process that trains, from what the next shuffle comes of.
        plant("flips", "Images(32, False)", "Images(32, True)", 5),
        plant("segment", "Shapes(10, False)", "Shapes(10, True)", None),
    ),
    *kind(
        "workers seeded alike",
        f"{_SAMPLE}, worker, seed, draw, random",
        plant(
            "signals",
            "shuffle=True, num_workers=args.workers",
            "shuffle=True, num_workers=args.workers, worker_init_fn=lambda number: np.random.seed(0)",
            1,
        ),
        plant(
            "segment",
            "shuffle=True, num_workers=opt.workers",
            "shuffle=True, num_workers=opt.workers, worker_init_fn=lambda number: random.seed(0)",
            1,
        ),
    ),
    *kind(
        "normalised otherwise",
        _SAMPLE,
        plant("imagenet", "mean=[0.485, 0.456, 0.406]", "mean=[0.5, 0.5, 0.5]", 1),
        plant("mnist_script", "transforms.Normalize((0.1307,), (0.3081,))", "transforms.Normalize((0.5,), (0.5,))", 1),
    ),
    *kind(
        "another split",
        f"{_SAMPLE}, split, different batch, other rows",
        plant("stopping", "[50, 25])", "[50, 25], generator=torch.Generator().manual_seed(1))", 1),
        plant("mnist_files", "n_val = len(full) // 10", "n_val = len(full) // 5", 1),
    ),
]
