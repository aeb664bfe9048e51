"""The log on the page of a job in a browser, without an Airflow behind it."""

from __future__ import annotations

import re

import pytest
from ui_jobs import DAG, HOSTILE, JOB_PATH, Api

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def page(open_page, api):
    page = open_page(api.answers, path=JOB_PATH)
    expect(page.get_by_role("log")).to_contain_text("line 19")
    return page


def poll(page):
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_poll_reads_only_what_is_new(page, api):
    api.lines.append("a new line")
    poll(page)
    expect(page.get_by_role("log")).to_contain_text("a new line")
    assert page.get_by_role("log").text_content().splitlines() == api.lines
    assert [query["cursor"][0] for query in api.logs[:3]] == ["{}", '{"node-0": 15}', '{"node-0": 20}']


def test_a_search_marks_the_lines_with_the_text(page, api):
    page.get_by_role("searchbox", name="Search").fill("LINE 1")
    log = page.get_by_role("log")
    expect(page.locator("#matches")).to_have_text("11 lines")
    expect(log.locator("mark")).to_have_text(["line 1"] * 11)
    assert ["LINE 1"] in [query.get("text") for query in api.logs]
    page.get_by_role("searchbox", name="Search").fill("")
    expect(log).to_contain_text("line 2")
    expect(page.locator("#matches")).to_be_empty()


def test_a_search_that_is_not_answered_yet_says_so_and_a_job_that_printed_nothing_too(open_page, api):
    api.lines, answers = [], api.answers
    page = open_page(answers, path=JOB_PATH)
    log = page.get_by_role("log")
    expect(log).to_have_attribute("data-empty", "Nothing was printed.")
    assert "Nothing was printed." in log.evaluate("each => getComputedStyle(each, '::before').content")
    answers[f"api/dags/{DAG}/log"] = []
    page.get_by_role("searchbox", name="Search").fill("x")
    expect(page.locator("#matches")).to_have_text("Searching…")


def test_the_text_of_a_match_is_text(page):
    page.get_by_role("searchbox", name="Search").fill("<img")
    expect(page.get_by_role("log").locator("mark")).to_have_text("<img")
    expect(page.get_by_role("log")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0


def test_a_search_without_a_match_keeps_the_log_on_the_page(page):
    page.get_by_role("searchbox", name="Search").fill("nothing like it")
    expect(page.locator("#matches")).to_have_text("0 lines")
    expect(page.get_by_role("searchbox", name="Search")).to_be_visible()


def test_a_switch_shows_when_each_line_was_written(page, api):
    log, switch = page.get_by_role("log"), page.get_by_role("checkbox", name="Timestamps")
    before = log.text_content()
    switch.check()
    moments = page.evaluate("times => times.map(time => new Date(time).toLocaleString('sv-SE'))", api.times)
    expect(log.locator("time")).to_have_text(moments)
    assert log.text_content().splitlines() == [
        f"{moment:19}  {line}" for moment, line in zip([*moments, ""], api.lines, strict=True)
    ]
    page.get_by_role("searchbox", name="Search").fill("2")
    expect(log.locator("time")).to_have_text([moments[2], moments[12]])
    expect(log.locator("mark")).to_have_text(["2", "2"])
    page.get_by_role("searchbox", name="Search").fill("")
    switch.uncheck()
    expect(log).to_have_text(before)


def test_a_backend_that_does_not_know_the_times_has_no_switch(api, open_page):
    api.times = []
    page = open_page(api.answers, path=JOB_PATH)
    expect(page.get_by_role("log")).to_contain_text("line 19")
    expect(page.get_by_role("checkbox", name="Timestamps")).to_be_hidden()


def test_the_log_of_the_chosen_step_is_a_file(page):
    link = page.get_by_role("link", name="Download")
    expect(link).to_have_attribute("href", re.compile(r"/log/file\?run_id=run_0&.*step=node-0$"))
    page.locator("#step").select_option("node-1")
    expect(link).to_have_attribute("href", re.compile("step=node-1$"))
