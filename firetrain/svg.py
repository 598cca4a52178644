"""SVG files from templates of a package."""

from __future__ import annotations

from typing import Any


def render_svg(package: str, template: str, **values: Any) -> str:
    """The text of an SVG file; `values` are those of the template, in which the filter `n` writes numbers briefly."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, "."), undefined=StrictUndefined, autoescape=True, keep_trailing_newline=True
    )
    environment.filters["n"] = "{:g}".format
    return environment.get_template(template).render(values)
