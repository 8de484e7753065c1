"""The report in a real browser: what a person sees, points at, clicks and presses."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedsuite.results.report import write_report
from tests.results.browser import PROGRAM, Page, chromium
from tests.results.made_runs import learning_curves, make_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
]

CLIENTS, ROUNDS = 12, 8
CURVES = "#curves .plot"
NARROW = 360


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one run with all sections, some with long words."""
    folder = tmp_path_factory.mktemp("reports")
    accuracies = learning_curves(ROUNDS, CLIENTS).tolist()
    run = make_run(folder / "run", accuracies=tuple(map(tuple, accuracies)))
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (CLIENTS, 10)).tolist()
    run.write_json("partition.json", {"train": counts, "test": counts})
    shared = {"kind": "rejected-reply", "phase": "train", "reason": "x" * 250}
    events = [{**shared, "round": r, "client": 3} for r in range(1, ROUNDS)]
    run.append("events", events)
    write_report([run.path], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as opened:
        yield opened


def draw_all(page: Page) -> int:
    """Scroll to each figure, so that it is drawn, and return their number."""
    number: int = page.ask("document.querySelectorAll('.plot').length")
    for index in range(number):
        place = f".plot[data-figure='{index}']"
        page.show(place)
        page.wait(f"document.querySelector(\"{place}\").dataset.drawn === 'yes'")
    return number


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, NARROW])
def test_all_is_drawn_without_a_complaint_and_fits(
    page: Page, report: Path, width: int, scheme: str
) -> None:
    page.look(width, scheme=scheme)
    page.open(report)
    assert draw_all(page) >= 7
    assert page.complaints == []
    inner = "document.documentElement.clientWidth"
    assert page.ask(f"document.documentElement.scrollWidth <= {inner}")
    # Text and paper differ as they should: the sums of red, green and blue.
    style = "getComputedStyle(document.body)"
    ink, paper = (
        sum(map(int, page.ask(f"{style}.{name}.match(/\\d+/g).slice(0, 3)")))
        for name in ("color", "backgroundColor")
    )
    assert (ink < 200 < 600 < paper) if scheme == "light" else (paper < 200 < 600 < ink)
    tick = page.ask("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert tick == page.ask(f"{style}.color")


def test_no_axis_title_lies_under_a_legend(page: Page, report: Path) -> None:
    page.look(NARROW)
    page.open(report)
    draw_all(page)
    covered = """[...document.querySelectorAll('.plot')].filter((plot) => {
      const [legend, title] = ['.legend', '.xtitle'].map((name) => {
        const found = plot.querySelector(name);
        return found && found.getBoundingClientRect();
      });
      return legend && title && legend.top < title.bottom - 1;
    }).map((plot) => plot.getAttribute('aria-label'))"""
    assert page.ask("document.querySelectorAll('.plot .legend').length") >= 2
    assert page.ask(covered) == []


def test_the_values_under_the_pointer_are_shown(page: Page, report: Path) -> None:
    page.look(1200)
    page.open(report)
    page.show(CURVES)
    page.wait(f"document.querySelector('{CURVES}').dataset.drawn === 'yes'")
    left, top, width, height = page.show(f"{CURVES} .nsewdrag")
    page.wait(
        "document.querySelector('.hoverlayer').textContent !== ''",
        lambda: page.point(left + width / 2, top + height / 2),
    )
    told = page.ask("document.querySelector('.hoverlayer').textContent")
    assert any(character.isdigit() for character in told)


def test_no_button_sends_a_chart_away(page: Page, report: Path) -> None:
    page.look(1200)
    page.open(report)
    page.show(CURVES)
    page.wait(f"document.querySelector('{CURVES}').dataset.drawn === 'yes'")
    titles = page.ask(
        f"[...document.querySelectorAll('{CURVES} .modebar-btn')].map((b) => "
        "b.dataset.title)"
    )
    assert "Zoom" in titles
    assert not [title for title in titles if "hare" in title or "loud" in title]


ACCURACIES = (
    "[...document.querySelectorAll('#clients tbody tr')]"
    ".map((row) => Number(row.cells[1].textContent))"
)


def test_clients_are_sorted_by_mouse_and_by_keyboard(page: Page, report: Path) -> None:
    page.look(1200)
    page.open(report)
    worst_first = page.ask(ACCURACIES)
    assert worst_first == sorted(worst_first)
    assert len(set(worst_first)) > 5
    # By client, then by accuracy, then the other way round.
    page.click("#clients th:nth-child(1) button")
    assert page.ask(ACCURACIES) != worst_first
    page.click("#clients th:nth-child(2) button")
    assert page.ask(ACCURACIES) == worst_first
    assert page.ask("document.activeElement.textContent").startswith("evaluate accuracy")
    page.press("Enter")
    assert page.ask(ACCURACIES) == worst_first[::-1]
    page.press("Tab")
    page.press("Enter")
    heading = "document.activeElement.closest('th')"
    assert page.ask(f"{heading}.cellIndex") == 2
    assert page.ask(f"{heading}.getAttribute('aria-sort')") == "ascending"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two experiments of three seeds, of which one is ahead."""
    folder = tmp_path_factory.mktemp("comparison")
    paths = []
    for seed in range(3):
        for gain, method in enumerate(("fedavg", "fedprox")):
            curves = learning_curves(ROUNDS, CLIENTS, seed=seed) * (0.8 + 0.1 * gain)
            path = folder / f"{method}{seed}"
            experiment = {"method": method, "seed": seed, "model": "linear"}
            make_run(path, experiment=experiment, accuracies=tuple(curves.tolist()))
            paths.append(path)
    write_report(paths, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("width", [1400, 800, 400])
def test_a_comparison_answers_first_and_every_table_sorts(
    page: Page, comparison: Path, width: int
) -> None:
    page.look(width, scheme="dark")
    page.open(comparison)
    assert page.ask("document.querySelector('h1').textContent").startswith(
        "fedprox is ahead of fedavg by "
    )
    assert page.ask("document.querySelector('section').id") == "compare"
    draw_all(page)
    assert page.complaints == []
    inner = "document.documentElement.clientWidth"
    assert page.ask(f"document.documentElement.scrollWidth <= {inner}")
    tables: int = page.ask("document.querySelectorAll('table').length")
    assert tables >= 4
    for index in range(tables):
        heading = f"document.querySelectorAll('table')[{index}].querySelector('th')"
        page.ask(f"{heading}.querySelector('button').click()")
        assert page.ask(f"{heading}.getAttribute('aria-sort')") == "ascending"


def test_curves_are_smoothed_and_have_a_logarithmic_axis(
    page: Page, comparison: Path
) -> None:
    page.look(1200)
    page.open(comparison)
    page.show(CURVES)
    page.wait(f"document.querySelector('{CURVES}').dataset.drawn === 'yes'")
    last = f"document.querySelector('{CURVES}').data[0].y.slice(-1)[0]"
    plain = page.ask(last)
    set_to = "(() => {{ const c = document.getElementById('{}'); c.{} = {};"
    set_to += "c.dispatchEvent(new Event('input')); }})()"
    page.ask(set_to.format("smoothing", "value", "0.9"))
    page.wait(f"{last} < {plain} - 1")
    page.ask(set_to.format("smoothing", "value", "0"))
    page.wait(f"{last} === {plain}")
    page.ask(set_to.format("logarithmic", "checked", "true"))
    page.wait(f"document.querySelector('{CURVES}').layout.yaxis.type === 'log'")


def test_paper_has_black_letters_in_dark_mode_too(page: Page, comparison: Path) -> None:
    page.look(1200, scheme="dark")
    page.open(comparison)
    page.ask("dispatchEvent(new Event('beforeprint'))")
    page.wait("[...document.querySelectorAll('.plot')].every((p) => p.dataset.drawn)")
    ink = "document.querySelector('.plot').layout.font.color"
    page.wait(f"{ink} === '#000000'")
    assert page.ask("[...document.querySelectorAll('details')].every((d) => d.open)")


def test_a_long_run_of_many_clients_is_a_small_file(page: Page, tmp_path: Path) -> None:
    """The lines of 300 clients and 400 rounds take 16 MB; 1,000 and 2,000 take minutes."""
    accuracies = learning_curves(400, 300).tolist()
    run = make_run(tmp_path / "run", accuracies=tuple(map(tuple, accuracies)))
    write_report([run.path], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    page.look(1200)
    page.open(tmp_path / "report.html")
    draw_all(page)
    assert page.complaints == []
    assert len(page.ask(ACCURACIES)) == 300
