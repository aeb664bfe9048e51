"""TrainJobs side by side, and the curves of one, in a browser without an Airflow behind it."""

from __future__ import annotations

import re

import pytest
from ui_jobs import COMPARE_PATH, HOSTILE, JOB_PATH, LABELS, NAMES, Api

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def page(open_page, api):
    return open_page(api.answers, path=COMPARE_PATH)


def row(page, heading):
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=heading, exact=True))


def test_equal_values_are_hidden_until_they_are_asked_for(page):
    expect(row(page, "lr").get_by_role("cell")).to_have_text(["0.1", "0.01"])
    expect(row(page, "Duration").get_by_role("cell")).to_have_text(["1 min 30 s", "2 h 0 min"])
    expect(row(page, "accuracy").get_by_role("cell")).to_have_text(["0.5", "0.5"])
    expect(row(page, "epochs")).to_have_count(0)
    expect(page.get_by_text("2 equal values are hidden.")).to_be_visible()
    page.get_by_label("Show equal values").check()
    expect(row(page, "epochs").get_by_role("cell")).to_have_text(["3", "3"])
    page.reload()
    expect(row(page, "epochs")).to_be_visible()


def test_the_best_value_of_a_metric_is_marked_where_its_name_tells_which_is_better(page):
    expect(row(page, "loss").get_by_role("cell")).to_have_text(["0.25", "0.125lowest"])
    expect(page.locator(".best")).to_have_count(1)  # The accuracies are equal.


def test_the_heading_of_a_metric_orders_the_jobs_and_the_order_is_in_the_url(page):
    headings = page.get_by_role("columnheader")
    expect(headings.first).to_contain_text(NAMES[0])
    row(page, "loss").get_by_role("button").click()
    expect(headings.first).to_contain_text(NAMES[1])
    expect(row(page, "lr").get_by_role("cell")).to_have_text(["0.01", "0.1"])
    expect(page).to_have_url(re.compile("&sort=metric.loss$"))
    row(page, "loss").get_by_role("button").click()
    expect(headings.first).to_contain_text(NAMES[0])
    page.reload()
    expect(page.get_by_role("rowheader", name="loss")).to_have_attribute("aria-sort", "descending")


def test_the_end_of_a_long_uri_is_shown_and_all_of_it_is_copied(page, api):
    long = f"s3://models/{'nightly/' * 8}model.pt"
    api.models = [long, None]
    page.reload()
    cell = row(page, "model").get_by_role("cell").first
    expect(cell).to_have_text(re.compile("^…(/nightly){3}/model.pt Copy$"))
    # Without https, as here, a browser has no `navigator.clipboard`.
    page.evaluate("document.execCommand = () => { window.copied = document.activeElement.value; return true; }")
    cell.get_by_role("button").click()
    expect(cell.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("window.copied") == long


def test_values_of_a_comparison_are_shown_as_text(page):
    expect(row(page, "note").get_by_role("cell")).to_have_text([HOSTILE, "-"])
    assert page.locator("img").count() == 0


def test_the_curves_of_all_jobs_are_on_one_chart(page):
    words = rf"^loss of {LABELS[0]} from 1 at step 1 to 0\.0001 at step 20.*; loss of {LABELS[1]} from 0\.5 at step 1"
    expect(page.get_by_role("img", name=re.compile(words))).to_be_visible()
    expect(page.locator("figure")).to_have_count(2)


def test_the_arrow_keys_show_the_values_of_a_step(page):
    chart = page.get_by_role("img", name=re.compile("^loss of"))
    values = page.locator("figure .values").first
    chart.focus()
    expect(values).to_be_empty()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(values.locator("> div")).to_have_text(["step 2", f"{LABELS[0]}1", f"{LABELS[1]}0.5"])
    page.keyboard.press("ArrowLeft")
    expect(values).to_contain_text("step 1")
    page.keyboard.press("End")
    expect(values).to_contain_text("step 20")
    page.keyboard.press("Escape")
    expect(values).to_be_empty()


def test_a_log_scale_spreads_small_values_and_is_in_the_url(page):
    ticks = page.locator("figure").first.locator("text[text-anchor=end]")
    expect(ticks).to_have_text(["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"])
    page.get_by_label("Log scale").check()
    expect(ticks).to_have_text(["1e-4", "0.001", "0.01", "0.1", "1"])
    expect(page).to_have_url(re.compile("&log=1$"))
    page.reload()
    expect(page.get_by_label("Log scale")).to_be_checked()
    expect(ticks).to_have_text(["1e-4", "0.001", "0.01", "0.1", "1"])


def test_a_job_is_removed_from_the_comparison(page):
    expect(page.locator("thead th")).to_have_count(2)
    page.get_by_role("button", name=f"Remove {NAMES[0]}").click()
    expect(page.locator("thead th")).to_have_count(1)
    expect(page.get_by_role("img", name=re.compile("^loss from 0.5"))).to_be_visible()
    assert page.url.count("job=") == 1


def test_curves_are_read_without_the_lines_and_from_cursor_to_cursor(page, api):
    expect(page.locator("figure")).to_have_count(2)
    asked = [(query["run_id"][0], query["cursor"][0], query["lines"][0]) for query in api.logs[:4]]
    assert asked == [(run, cursor, "0") for run in ("run_0", "run_1") for cursor in ("{}", '{"node-0": 15}')]


def test_the_page_of_a_job_draws_the_same_curves(open_page, api):
    page = open_page(api.answers, path=JOB_PATH)
    expect(page.get_by_role("img", name=re.compile(r"^loss from 1 at step 1 to 0\.0001 at step 20"))).to_be_visible()
    expect(page.locator("figcaption").first).to_have_text("loss0.0001 at step 20")


def test_the_page_of_a_job_draws_its_use_of_resources(open_page, api):
    section = open_page(api.answers, path=JOB_PATH).get_by_role("region", name="Use of resources")
    expect(section.locator("figcaption")).to_have_text(
        ["Processor, %69", "Memory1 GiB of 2 GiB", "GPU 0, %71", "Memory of GPU 08 GiB of 16 GiB"]
    )
    expect(
        section.get_by_role("img", name=re.compile(r"^Processor, % from 50 at minute 0 to 69 at minute 3\.167"))
    ).to_be_visible()


def test_the_page_of_a_job_has_its_parameters_as_text_and_links_to_its_run(open_page, api):
    page = open_page(api.answers, path=JOB_PATH)
    expect(page.get_by_role("heading", level=1)).to_have_text("train")
    expect(page.get_by_role("region", name="Parameters").locator("dd")).to_have_text(["0.1", HOSTILE])
    expect(page.get_by_role("link", name="run_0")).to_have_attribute("href", re.compile("/runs/run_0$"))
