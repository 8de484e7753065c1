"""A report of runs, or of a partition, as one HTML file that works without a network.

The report reads the runs' folders alone, also of a run that goes on or was killed. Names,
reasons and numbers in a run's folder come from clients, so none of them is trusted.
"""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.files import atomic_write, make_folder
from fedsuite.data.federated import FederatedData
from fedsuite.results.compare import Comparison
from fedsuite.results.reader import Run, load_run
from fedsuite.results.report.sections import Page, page, partition_page

NAME = "report.html"

_HERE = Path(__file__).parent


def write_report(
    paths: Sequence[str | Path], output: Path, comparison: Comparison | None = None
) -> None:
    """Write the report of one or more runs.

    Parameters
    ----------
    paths
        Folders of runs.
    output
        The HTML file, which is replaced as a whole; its folder is made.
    comparison
        The runs' comparison that the page shows; None is that of the last evaluations,
        where there are several runs.

    Raises
    ------
    RunError
        If there is no run, a folder holds no run or a damaged one, or the file cannot be
        written.
    """
    runs = [load_run(path) for path in dict.fromkeys(map(Path, paths))]
    text = report_html(runs, comparison)
    make_folder(output.parent)
    atomic_write(output, text.encode())


def report_html(runs: Sequence[Run], comparison: Comparison | None = None) -> str:
    """Return the report of runs as HTML; RunError if there is no run, or a damaged one."""
    if not runs:
        raise RunError("nothing to report: give the folders of one or more runs")
    try:
        content = page(runs, comparison)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        where = ", ".join(str(run.path) for run in runs[:3])
        raise RunError(
            f"{where}: a file does not hold what fedsuite writes "
            f"({type(error).__name__}: {one_line(error)}): is it damaged?"
        ) from error
    return as_html(content)


def write_partition(data: FederatedData, title: str, output: Path) -> None:
    """Write the page of the rows that each client holds, which needs no run, as HTML."""
    text = as_html(partition_page(data, title))
    make_folder(output.parent)
    atomic_write(output, text.encode())


def as_html(content: Page) -> str:
    """Return a page as HTML that works without a network."""
    library, digest = _library()
    script = (_HERE / "page.js").read_text("utf-8")
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=content,
        figures=htmlsafe_json_dumps([figure.as_dict() for figure in content.figures]),
        style=(_HERE / "page.css").read_text("utf-8"),
        script=script,
        library=library,
        hashes=f"'{digest}' '{_digest(script)}'",
    )


@cache
def _library() -> tuple[str, str]:
    """Return Plotly's script, compressed and as base64, and the script's digest."""
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    packed = gzip.compress(script.encode(), 6, mtime=0)
    return base64.b64encode(packed).decode(), _digest(script)


def _digest(script: str) -> str:
    """Return the digest by which the page's security policy knows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
