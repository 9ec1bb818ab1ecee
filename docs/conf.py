"""Sphinx: `make docs` builds the site from these pages and the docstrings."""

from fullgraph.version import __version__

project = "fullgraph"
author = copyright = "The fullgraph authors"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["extending/*"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # pages name files of the repository, too

html_theme = "furo"
html_title = "fullgraph"
html_static_path: list[str] = []

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
