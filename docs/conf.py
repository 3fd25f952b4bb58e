"""Sphinx: the reference from the docstrings, and the pages that live beside what they describe."""

from fast_attention import __version__

project = "fast_attention"
author = "the fast_attention developers"
copyright = author
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
]
html_theme = "furo"
html_title = f"fast_attention {release}"
templates_path = ["_templates"]
exclude_patterns = ["_templates"]

autodoc_typehints = "none"  # the docstrings have them
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links of the README lead to files beside it
