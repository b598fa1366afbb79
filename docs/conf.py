"""The site: Sphinx reads the Markdown pages, figures and the example report are made here.

Nothing is fetched: no inventories of other projects, no fonts, no analytics.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "examples"), str(HERE.parent)]  # the last for validation

import figures  # noqa: E402
import reference  # noqa: E402

import r2no  # noqa: E402

project = "r2no"
author = "the r2no authors"
project_copyright = "the r2no authors, Apache-2.0"
version = release = r2no.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples"]
source_suffix = {".md": "markdown"}
nitpicky = False
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"r2no {release}"
html_static_path = ["_static"]
html_css_files = ["r2no.css"]
html_extra_path = ["_build/extra"]
html_show_sourcelink = False
html_copy_source = False

figures.make(HERE / "_build")
reference.make(HERE / "_build" / "reference")


def _escape_stars(app, what, name, obj, options, lines) -> None:
    """Axes such as *space in docstrings are no emphasis; what stands in backticks is left alone."""
    for number, line in enumerate(lines):
        pieces = re.split(r"(`[^`]*`)", line)
        lines[number] = "".join(
            piece if piece.startswith("`") else re.sub(r"(?<!\\)\*(?=[a-z])", r"\\*", piece)
            for piece in pieces
        )


def setup(app) -> None:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", _escape_stars)
