"""Reads a notebook's file."""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dp2ddp.errors import BadInput

SUFFIX = ".ipynb"


def is_named(name: str) -> bool:
    """Whether a file's name is that of a notebook."""
    return Path(name).suffix == SUFFIX


def read(path: Path, name: str) -> Any:
    """The notebook at `path`, as nbformat has it, in format 4.

    Raises:
        BadInput: it can't be read, is no valid notebook with Python in it, or nbformat is missing.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise BadInput(name, what="no such file") from None
    except OSError as error:
        raise BadInput(name, what=f"can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadInput(name, what="no notebook: not UTF-8") from None
    document = _parsed(text, name)
    language = _language(document["metadata"])
    if language not in ("python", "ipython", "python3", ""):
        raise BadInput(name, what=f"a notebook in {language}, not in Python")
    if not any(cell["cell_type"] == "code" and cell["source"].strip() for cell in document["cells"]):
        raise BadInput(name, what="a notebook without code")
    return document


def write(document: Any) -> bytes:
    """A notebook's bytes, as Jupyter writes them."""
    import nbformat

    return f"{nbformat.writes(document).rstrip()}\n".encode()


def _parsed(text: str, name: str) -> Any:
    if find_spec("nbformat") is None:
        raise BadInput(name, what="notebooks need nbformat", todo="pip install nbformat")
    # Slow to import, and only wanted for notebooks.
    import nbformat

    # What is missing and can be made up (ids of cells), nbformat tells the log and the user: not this command's affair.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    broken = (ValueError, KeyError, AttributeError, TypeError, RecursionError, nbformat.ValidationError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = nbformat.reads(text, as_version=4)
            nbformat.validate(document)
    except broken as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(name, what=f"no valid notebook: {reason}") from None
    return document


def _language(metadata: Any) -> str:
    """The language that it says it is in; empty if it doesn't say."""
    info = metadata.get("language_info", {}).get("name")
    return str(info or metadata.get("kernelspec", {}).get("language") or "").lower()
