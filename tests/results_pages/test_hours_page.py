"""The page by the hour and the gigabyte says what its tables have."""

import importlib.util

from tests.results_pages.recomputed import SIMULATIONS

FOLDER = SIMULATIONS / "hours"


def test_the_page_is_what_the_tables_make() -> None:
    spec = importlib.util.spec_from_file_location("hours", FOLDER / "hours.py")
    hours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hours)
    assert (FOLDER / "README.md").read_text() == hours.rendered()
    assert hours.HOW_TO.read_text() == hours.how_to()
    assert hours.complete_seeds(hours.curves())
