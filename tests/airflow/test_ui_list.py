"""Columns, order, time range and selection of the list of TrainJobs in a browser, without an Airflow behind it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

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
        self.columns = ["duration", "reason", "param.lr", "param.note", "metric.loss"]

    def __call__(self, query):
        self.asked.append(query)
        column = query.get("sort", [""])[0]
        rows = [
            {**row, "columns": {name: values[name] for name in query.get("column", []) if name in values}}
            for row, values in zip(ROWS, VALUES, strict=True)
        ]
        jobs = rows[::-1] if column.startswith("-") else rows
        return {"dags": [TASK["dag_id"]], "jobs": jobs, "columns": self.columns, "total": 10_000, "older": None}


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
    page.get_by_label("Submitted").select_option("Other times")
    page.get_by_label("From").fill("2026-11-01T10:00")
    page.get_by_label("To", exact=True).fill("2026-11-02T10:00")
    page.get_by_label("Rows").select_option("20")
    expect(page).to_have_url(
        "http://airflow/trainjobs/?count=20&since=2026-11-01T10%3A00%3A00.000Z&before=2026-11-02T10%3A00%3A00.000Z"
    )
    page.reload()
    expect(page.get_by_label("From")).to_have_value("2026-11-01T10:00")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    last = api.asked[-1]
    assert (last["since"], last["count"]) == (["2026-11-01T10:00:00.000Z"], ["20"])


def test_a_partition_can_be_filtered_where_a_job_has_one(open_page, api):
    page = open_page({"api/jobs": api})
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.get_by_role("searchbox", name="Partition")).to_be_hidden()
    api.columns.append("partition")
    page.reload()
    page.get_by_role("searchbox", name="Partition").fill("emea")
    expect(page).to_have_url("http://airflow/trainjobs/?partition=emea")
    page.reload()
    expect(page.get_by_role("searchbox", name="Partition")).to_have_value("emea")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    assert api.asked[-1]["partition"] == ["emea"]


def test_chosen_jobs_are_compared_by_a_link(open_page, api):
    page = open_page({"api/jobs": api})
    page.get_by_label("Compare first").check()
    expect(page.locator("#compare")).to_have_text("Choose another TrainJob to compare")
    page.get_by_label("Compare second").check()
    link = page.get_by_role("link", name="Compare 2 TrainJobs")
    href = link.get_attribute("href")
    assert href.startswith("compare?job=dag_id%3D")
    assert href.count("&job=") == 1


def test_marked_jobs_are_still_marked_after_going_back(open_page, api):
    page = open_page({"api/jobs": api, "api/compare": {"jobs": [], "rows": []}})
    page.get_by_label("Compare first").check()
    page.get_by_label("Compare second").check()
    page.get_by_label("Rows").select_option("20")
    page.get_by_role("link", name="Compare 2 TrainJobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare TrainJobs")
    page.go_back()
    expect(page.get_by_role("link", name="Compare 2 TrainJobs")).to_be_visible()
    expect(page.get_by_label("Compare first")).to_be_checked()


def test_a_preset_moves_with_the_time(open_page, api):
    page = open_page({"api/jobs": api}, path="?last=24")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.get_by_label("From")).to_be_hidden()
    age = datetime.now(timezone.utc) - datetime.fromisoformat(api.asked[-1]["since"][0])
    assert timedelta(hours=24) <= age < timedelta(hours=25)
    assert "last" not in api.asked[-1]
    page.get_by_label("Submitted").select_option("Last hour")
    expect(page).to_have_url("http://airflow/trainjobs/?last=1")


def test_reversed_times_say_so_and_are_not_asked_for(open_page, api):
    page = open_page({"api/jobs": api}, path="?since=2026-11-02T10:00:00Z&before=2026-11-01T10:00:00Z")
    expect(page.get_by_role("alert")).to_contain_text("From is later than To")
    expect(page.get_by_role("status")).to_be_empty()
    assert api.asked == []
    page.get_by_label("From").fill("2026-10-01T10:00")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_unknown_column_is_named(open_page):
    requests = []
    page = open_page({"api/jobs": requests}, path="?column=nme")
    expect(page.locator(".skeleton")).to_be_visible()
    wrong = {"loc": ["query", "column", 0], "msg": "Value error, column 'nme' is unknown; known are name, status"}
    requests[0].fulfill(status=422, json={"detail": [wrong]})
    expect(page.get_by_role("alert")).to_have_text("column: column 'nme' is unknown; known are name, status.")
    expect(page.locator(".skeleton")).to_have_count(0)
    open_page.problems.clear()  # Chromium reports each answer with such a status.


def test_a_new_filter_says_that_it_is_searching(open_page, api):
    answers = {"api/jobs": api}
    page = open_page(answers)
    expect(page.get_by_role("status")).to_have_text("2 of 10,000 TrainJobs")
    answers["api/jobs"] = requests = []
    page.get_by_role("searchbox", name="Search").fill("fi")
    expect(page.get_by_role("status")).to_have_text("Searching…")
    requests[0].fulfill(json=api({}))
    expect(page.get_by_role("status")).to_have_text("2 of 10,000 TrainJobs")
