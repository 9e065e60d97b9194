"""Both loss curves and the difference of the parameters, as a picture. Needs matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.verify.compare.compare import Comparison

FORMATS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Check, before anything is run, that a picture can be drawn to `path`.

    Raises:
        BadInput: another format, no such folder, or no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise BadInput(str(path), what="a plot is a .png, .svg or .pdf file")
    if not path.absolute().parent.is_dir():
        raise BadInput(str(path), what=f"no such folder: {path.parent}", todo="make it first")
    if find_spec("matplotlib") is None:
        raise BadInput("--plot", what="matplotlib is not installed", todo='pip install "dp2ddp[plot]"')


def draw(comparison: Comparison, path: Path, title: str) -> None:
    """Draw the losses of each call of `backward`, and below the relative difference after each optimizer step."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), layout="constrained")
    above.plot(comparison.original.losses(), label="original", linewidth=3, alpha=0.5)
    above.plot(comparison.converted.losses(), label="converted", linewidth=1)
    above.set(title=title, xlabel="call of backward", ylabel="loss")
    above.legend()
    steps = [step.step for step in comparison.steps]
    below.plot(steps, [max(step.relative, 1e-17) for step in comparison.steps], label="parameters")
    below.axhline(comparison.tolerance, color="gray", linestyle="--", label="tolerance")
    below.set(yscale="log", xlabel="optimizer step", ylabel="relative difference")
    below.legend()
    figure.savefig(path)
    pyplot.close(figure)
