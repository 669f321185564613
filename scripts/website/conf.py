"""Configuration of Sphinx for the site; copied beside the pages."""

project = "AstraFlow"
html_title = "AstraFlow"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_build"]

# As GitHub does: every heading can be linked to.
myst_heading_anchors = 6
# A README may begin its sections where its table of contents is better for it.
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
