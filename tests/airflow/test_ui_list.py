"""Columns, order, time range and selection of the list of TrainJobs in a browser, without an Airflow behind it."""

from __future__ import annotations

import pytest
from test_ui_layout import RUN, TASK

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect

HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = [
    {**RUN, "name": "first", "status": "Complete", "map_index": 1},
    {**RUN, "name": "second", "status": "Complete", "map_index": 2},
]
VALUES = [
    {"param.lr": "0.1", "param.note": HOSTILE, "metric.loss": 0.25, "duration": 90.0},
    {"param.lr": "0.01", "metric.loss": 0.5, "duration": 7200.0},
]


class Api:
    """Answers as the API server does: with the chosen columns, in the order that was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, query):
        self.asked.append(query)
        column = query.get("sort", [""])[0]
        rows = [
            {**row, "columns": {name: values[name] for name in query.get("column", []) if name in values}}
            for row, values in zip(ROWS, VALUES, strict=True)
        ]
        columns = ["duration", "reason", "param.lr", "param.note", "metric.loss"]
        jobs = rows[::-1] if column.startswith("-") else rows
        return {"dags": [TASK["dag_id"]], "jobs": jobs, "columns": columns, "total": 10_000, "older": None}


@pytest.fixture
def api():
    return Api()


def test_columns_are_chosen_by_keyboard_and_survive_a_reload(open_page, api):
    page = open_page({"api/jobs": api})
    expect(page.get_by_role("status")).to_have_text("2 of 10,000 TrainJobs")
    page.get_by_text("Columns", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_label("lr parameter").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("columnheader", name="lr")).to_be_visible()
    expect(page.get_by_label("lr parameter")).to_be_focused()
    page.get_by_label("Duration").check()
    expect(page.get_by_role("row", name="second")).to_contain_text("2 h 0 min")
    page.reload()
    expect(page.get_by_role("row", name="first")).to_contain_text("0.1")
    expect(page.get_by_role("row", name="first")).to_contain_text("1 min 30 s")
    assert api.asked[-1]["column"] == ["duration", "param.lr"]


def test_values_of_columns_are_shown_as_text(open_page, api):
    page = open_page({"api/jobs": api}, path="?column=param.note")
    expect(page.get_by_role("row", name="first")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0


def test_a_heading_sorts_by_its_column_and_the_order_is_in_the_url(open_page, api):
    page = open_page({"api/jobs": api}, path="?column=metric.loss")
    page.get_by_role("button", name="loss").click()
    expect(page.get_by_role("columnheader", name="loss")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("link", name="second").locator("xpath=ancestor::tr")).to_have_js_property("rowIndex", 1)
    expect(page.get_by_label("Sort by")).to_have_value("-metric.loss")
    page.get_by_role("button", name="loss").click()
    expect(page.get_by_role("columnheader", name="loss")).to_have_attribute("aria-sort", "ascending")
    page.reload()
    expect(page.get_by_role("columnheader", name="loss")).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_role("status")).to_have_text("2 of 10,000 TrainJobs, sorted by loss, ascending")
    assert api.asked[-1]["sort"] == ["metric.loss"]


def test_a_time_range_and_a_number_of_rows_are_asked_for_and_survive_a_reload(open_page, api):
    page = open_page({"api/jobs": api})
    page.get_by_label("From").fill("2026-11-01T10:00")
    page.get_by_label("To", exact=True).fill("2026-11-02T10:00")
    page.get_by_label("Rows").select_option("20")
    expect(page).to_have_url(
        "http://airflow/trainjobs/?since=2026-11-01T10%3A00%3A00.000Z&before=2026-11-02T10%3A00%3A00.000Z&count=20"
    )
    page.reload()
    expect(page.get_by_label("From")).to_have_value("2026-11-01T10:00")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    last = api.asked[-1]
    assert (last["since"], last["count"]) == (["2026-11-01T10:00:00.000Z"], ["20"])


def test_chosen_jobs_are_compared_by_a_link(open_page, api):
    page = open_page({"api/jobs": api})
    page.get_by_label("Compare first").check()
    expect(page.locator("#compare")).to_have_text("Choose another TrainJob to compare")
    page.get_by_label("Compare second").check()
    link = page.get_by_role("link", name="Compare 2 TrainJobs")
    href = link.get_attribute("href")
    assert href.startswith("compare?job=dag_id%3D")
    assert href.count("&job=") == 1
