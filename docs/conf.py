"""The documentation site: `python3 dev.py docs` builds it in build/docs; a warning is an error."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

# The runtime's reference is made from its docstrings.
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

project = "dp2ddp"
release = importlib.metadata.version("dp2ddp")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

html_theme = "furo"
html_title = "dp2ddp"
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
# Added and removed lines of a diff in green and red.
pygments_style = "default"
pygments_dark_style = "monokai"

# The pages' links are those that GitHub follows: `[text](page.md#heading)`.
myst_heading_anchors = 4
# GitHub draws the picture in architecture.md. Here it is shown as text: what draws it would come from the network.
suppress_warnings = ["misc.highlighting_failure"]

add_module_names = False
# What docstrings have in backticks is code.
default_role = "code"
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

# What is copied of a terminal are the commands.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def _escaped(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes the stars of `obj, f, *args, **kwargs:` for emphasis, unless they come first."""
    lines[:] = [line.replace("*args, **kwargs:", r"\*args, \*\*kwargs:") for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _escaped, priority=400)  # before napoleon's 500
