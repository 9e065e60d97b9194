"""Templates to pages, with jinja2."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dp2ddp import __version__
from dp2ddp.page.escaping import code, prose, visible

_SHARED = "dp2ddp.page"


def render(
    package: str, template: str, content: Mapping[str, object], styles: Sequence[str], scripts: Sequence[str]
) -> str:
    """As `dp2ddp.page.render`."""
    environment = _environment(package)
    style = _joined(environment, ["base.css", *styles])
    script = _joined(environment, ["base.js", *scripts])
    return environment.get_template(template).render(
        content,
        dp2ddp_version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
    )


def _environment(package: str) -> Environment:
    own = [] if package == _SHARED else [PackageLoader(package)]
    environment = Environment(
        loader=ChoiceLoader([*own, PackageLoader(_SHARED)]),
        # Whatever a template prints; no name, no line of a script, no message can be forgotten.
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code
    environment.filters["prose"] = prose
    return environment


def _finalized(value: object) -> object:
    """What a template prints: text with its odd characters spelled out, unless it is markup already."""
    return value if hasattr(value, "__html__") else visible(str(value))


def _joined(environment: Environment, names: Sequence[str]) -> str:
    assert environment.loader is not None
    texts = [environment.loader.get_source(environment, name)[0] for name in names]
    # A browser takes the hash of what it reads, in which lines end with a newline.
    return "\n".join(texts).replace("\r\n", "\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
