"""The site: `make docs` builds it without a network, and a warning fails the build."""

import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import fedsuite

# Of a docstring that a client inherits from Flower.
warnings.filterwarnings("ignore", message="Unknown section Warning")

project = "fedsuite"
author = "fedsuite"
version = release = fedsuite.__version__
copyright = "the authors of fedsuite, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "extension",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False
language = "en"

html_theme = "furo"
html_title = f"fedsuite {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_allow_labels = False
myst_dmath_double_inline = False
# The equations are MathML, which browsers draw themselves: see extension.py.
html_math_renderer = "mathml"

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 3600
nb_execution_raise_on_error = True
nb_merge_streams = True
# For the commands in notebooks: as in an activated environment, without colours.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ |= {"COLUMNS": "132", "NO_COLOR": "1"}

templates_path = ["_templates"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_validation_checks: set[str] = set()
