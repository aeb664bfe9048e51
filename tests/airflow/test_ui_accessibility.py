"""The TrainJobs pages have no violation that axe-core finds, and fit the screen, in light and dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from test_ui_layout import BROKEN, SCREENSHOTS, WIDTHS
from ui_jobs import COMPARE_PATH, JOB_PATH, Api
from ui_search import SEARCH_PATH, answers

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect

VIOLATIONS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id}: ${target}`))"""
PAGES = {
    "list": ("?column=param.lr&column=duration", "0.1"),
    "job": (JOB_PATH, "line 19"),
    "compare": (COMPARE_PATH, "0.01"),
    "search": (SEARCH_PATH, "Trial 23"),
}


def open_loaded(open_page, name):
    path, content = PAGES[name]
    page = open_page({**Api().answers, **(answers() if name == "search" else {})}, path=path)
    expect(page.locator("main")).to_contain_text(content)
    # Two metrics; of one job also processor, memory, and both of a GPU. Of a search the best so far, the objective by
    # three parameters, all of them, and its curves.
    expect(page.locator("figure")).to_have_count({"list": 0, "job": 6, "compare": 2, "search": 6}[name])
    return page


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(open_page, name):
    page = open_loaded(open_page, name)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.evaluate(AXE_SCRIPT)
    assert page.evaluate(VIOLATIONS) == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 19)"
    assert page.evaluate(VIOLATIONS) == []


@pytest.mark.parametrize("name", ["job", "compare", "search"])
def test_a_page_fits_the_screen(open_page, name):
    page = open_loaded(open_page, name)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}.png", full_page=True)
        # A wide table scrolls in its frame, the page does not.
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert (width, page.evaluate(BROKEN)) == (width, [])
