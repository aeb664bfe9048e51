"""The TrainJobs pages have no violation that axe-core finds, and fit the screen, in light and dark.

axe-core (MPL 2.0) is in `vendor/`, because `make install` needs no npm, and a rule that a newer version adds must not
fail a test that passed the day before.
"""

from __future__ import annotations

import pathlib

import pytest
from test_ui_layout import SCREENSHOTS
from ui_jobs import COMPARE_PATH, JOB_PATH, Api

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect

AXE = next(pathlib.Path(__file__).with_name("vendor").glob("axe-core-*/axe.min.js"))
VIOLATIONS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id}: ${target}`))"""
PAGES = {
    "list": ("?column=param.lr&column=duration", "0.1"),
    "job": (JOB_PATH, "line 19"),
    "compare": (COMPARE_PATH, "0.01"),
}


def open_loaded(open_page, name, **options):
    path, content = PAGES[name]
    page = open_page(Api().answers, path=path, **options)
    expect(page.locator("main")).to_contain_text(content)
    # Two metrics; of one job also processor, memory, and both of a GPU.
    expect(page.locator("figure")).to_have_count({"list": 0, "job": 6, "compare": 2}[name])
    return page


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(open_page, name, scheme, width):
    page = open_loaded(open_page, name, scheme=scheme, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []


@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize("name", ["job", "compare"])
def test_a_page_fits_the_screen(open_page, name, width):
    page = open_loaded(open_page, name, width=width)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}-{width}.png", full_page=True)
    # A wide table scrolls in its frame, the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") == width
