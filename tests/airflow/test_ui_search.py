"""The page of a search, and its row in the list, in a browser with answers of the API."""

from __future__ import annotations

import urllib.parse

import pytest
from ui_jobs import CREATED
from ui_search import BEST, COMPLETE, SEARCH_PATH, TASK, TRIALS, answers

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect


def open_search(open_page, **changes):
    page = open_page(answers(**changes), path=SEARCH_PATH)
    expect(page.get_by_role("table", name="Trials")).to_contain_text("Trial 23")
    return page


def test_the_best_trial_is_first_and_has_its_parameters_and_a_link(open_page):
    page = open_search(open_page)
    best = page.get_by_role("region", name="Best trial")
    expect(best).to_contain_text(f"val_loss{BEST['value']}")
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(best.get_by_role("link").get_attribute("href")).query)
    assert query == {name: [str(value)] for name, value in {**TASK, "attempt": BEST["job"]}.items()}
    expect(page.get_by_role("table", name="Trials").get_by_role("row").nth(1)).to_contain_text("best")


def test_each_trial_with_a_value_is_a_point_by_each_parameter_and_a_line_through_all(open_page):
    page = open_search(open_page)
    plots = page.locator("#plots .plot")
    expected = f"Best val_loss from 0.3648 after trial 1 to {BEST['value']} after trial 20"
    expect(plots.nth(0)).to_have_attribute("aria-label", expected)
    for number in range(4):
        expect(plots.nth(number).locator("circle")).to_have_count(len(TRIALS) - 1)
    expect(plots.nth(4).locator("path.curve")).to_have_count(len(TRIALS) - 1)
    # The learning rate is drawn by its logarithm.
    expect(plots.nth(1)).to_contain_text("0.001")


def test_losers_are_grey_and_the_five_best_have_a_colour(open_page):
    page = open_search(open_page)
    coloured = [f"Trial {trial['number']}" for trial in COMPLETE[:5]]
    expect(page.get_by_role("list", name="Curves").get_by_role("listitem")).to_have_text(coloured)
    expect(page.locator("#curves path.pale")).to_have_count(len(TRIALS) - 5)


def test_trials_can_be_compared(open_page):
    page = open_search(open_page)
    for number in (3, 23):
        page.get_by_label(f"Compare trial {number}", exact=True).check()
    target = page.get_by_role("link", name="Compare 2 trials").get_attribute("href")
    jobs = urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)["job"]
    assert [urllib.parse.parse_qs(job)["attempt"] for job in jobs] == [[TRIALS[3]["job"]], [TRIALS[23]["job"]]]


def test_a_search_that_cannot_be_read_has_the_best_trials_of_its_task(open_page):
    pushed = [{key: trial[key] for key in ("number", "status", "value", "parameters", "job")} for trial in TRIALS]
    page = open_search(
        open_page, trials=pushed, space={"lr": {}, "batch": {}}, metric=None, unreachable="no connection"
    )
    expect(page.locator("#notices")).to_contain_text("The API server cannot read the trials: no connection.")
    expect(page.locator("#plots figure")).to_have_count(4)
    expect(page.locator("#trials a, #curves figure")).to_have_count(0)


def test_a_search_is_one_row_of_the_list_and_links_to_its_page(open_page):
    row = {**TASK, "label": "tune", "name": "search", "is_search": True, "status": "Running", "created": CREATED}
    row |= {"summary": "14 of 20, 4 running, best val_loss 0.21 (minimized, trial 9)", "progress": {"percentage": 70}}
    page = open_page({"api/jobs": {"dags": [TASK["dag_id"]], "jobs": [row], "columns": [], "older": None}})
    found = page.get_by_role("row", name="tune")
    expect(found).to_contain_text("14 of 20, 4 running, best val_loss 0.21 (minimized, trial 9)")
    expect(found.get_by_role("progressbar")).to_have_attribute("value", "70")
    expect(found.get_by_role("checkbox")).to_have_count(0)
    assert found.get_by_role("link", name="tune").get_attribute("href") == f"search?{urllib.parse.urlencode(TASK)}"
