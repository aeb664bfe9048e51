"""The list of TrainJobs in a browser at the widths of a phone, a tablet and a desktop, without an Airflow behind it."""

from __future__ import annotations

import pathlib
import urllib.parse

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect

#: Of a phone, a tablet and a desktop, in pixels.
WIDTHS = (390, 820, 1440)
SCREENSHOTS = pathlib.Path(__file__).parents[2] / "build" / "screenshots"
TASK = {"dag_id": "nightly_forecast_of_the_north", "task_id": "train_the_large_model", "map_index": -1}
CREATED = "2026-11-22T20:15:00+00:00"
RUN = {**TASK, "run_id": f"scheduled__{CREATED}", "backend": "kubernetes"}
RUN |= {"created": CREATED, "label": "train_the_large_model rate=0.0001 layers=[64, 64, 10]"}
QUEUED = "queued: 3 queued TrainJobs ahead; at most 4 run at the same time (max_parallel=4)"
JOBS = [
    {**RUN, "name": "nightly-forecast-train-the-large-model-0123456789-12", "status": "Running"},
    {**RUN, "name": "waits", "status": "Created", "waits_for": QUEUED},
    {**RUN, "name": "elsewhere", "status": "Created", "is_unknown": True},
    {**RUN, "name": "done", "status": "Complete", "map_index": 17},
]
JOBS[0]["progress"] = {"step": 5, "total": 10, "percentage": 50}
#: Strings of tables and facts that are broken within a word: each part between two separators must be on one line.
BROKEN = """() => {
  const broken = [];
  for (const place of document.querySelectorAll("table, .facts, h1")) {
    const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      const range = document.createRange();
      range.selectNodeContents(node);
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
      if (lines.size > 1) broken.push(node.textContent);
    }
  }
  return broken;
}"""
OVERFLOW = """() => [document.documentElement, ...document.querySelectorAll(".scroll")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className || each.tagName)"""


def listing(jobs):
    return {"api/jobs": {"dags": [TASK["dag_id"]], "jobs": jobs, "columns": [], "older": None}}


def test_on_a_phone_the_filters_are_folded_and_the_box_is_beside_the_name(open_page):
    page = open_page(listing(JOBS), path="?status=Running", width=390)
    box = page.get_by_label("Compare waits").bounding_box()
    name = page.get_by_role("link", name="waits").bounding_box()
    assert box["x"] + box["width"] <= name["x"]
    assert abs(box["y"] - name["y"]) < 12
    status = page.get_by_role("combobox", name="Status")
    expect(status).to_be_hidden()
    page.get_by_role("button", name="Filters (1)").click()
    expect(status).to_have_value("Running")


def test_the_list_says_why_a_job_failed_and_where_one_was_stopped(open_page):
    failed = {**RUN, "name": "failed", "status": "Failed", "reason": "ValueError: no such file"}
    cancelled = {**RUN, "name": "ended", "status": "Cancelled", "progress": {"step": 5, "total": 10, "percentage": 50}}
    page = open_page(listing([failed, cancelled]))
    expect(page.get_by_role("row", name="failed")).to_contain_text("FailedValueError: no such file")
    expect(page.get_by_role("row", name="ended")).to_contain_text("Cancelledstopped at step 5 of 10")
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_the_list_fits_the_screen_and_breaks_no_word(open_page):
    page = open_page(listing(JOBS))
    expect(page.get_by_role("link", name=JOBS[0]["name"])).to_be_visible()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=SCREENSHOTS / f"list-{width}.png", full_page=True)
        assert (width, page.evaluate(OVERFLOW)) == (width, [])
        assert (width, page.evaluate(BROKEN)) == (width, [])


def test_a_job_that_is_unknown_here_or_queued_is_named_so(open_page):
    page = open_page(listing(JOBS))
    expect(page.get_by_role("row", name="elsewhere")).to_contain_text("Unknown")
    expect(page.get_by_role("row", name="elsewhere")).to_contain_text("last known: Created")
    expect(page.get_by_role("row", name="waits")).to_contain_text("queued: 3 queued TrainJobs ahead")


def test_an_empty_list_has_a_next_step(open_page):
    page = open_page(listing([]))
    expect(page.get_by_role("link", name="open the DAGs")).to_have_attribute("href", "http://airflow/dags")
    page.get_by_role("searchbox", name="Search").fill("no such job")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("")
    expect(page.get_by_text("No task has submitted a TrainJob yet.")).to_be_visible()


def job(**fields):
    task = {**TASK, "run_id": RUN["run_id"], "state": "success"}
    base = {
        "task": task,
        "name": "job",
        "backend": "kubernetes",
        "namespace": "team",
        "created": CREATED,
        "label": "train",
    }
    return {f"api/dags/{TASK['dag_id']}/job": {**base, "actions": [], **fields}}


JOB_PATH = "job?" + urllib.parse.urlencode({key: value for key, value in RUN.items() if key in (*TASK, "run_id")})


def test_the_page_of_a_job_that_cannot_be_read_does_not_claim_its_status(open_page):
    page = open_page(job(status="Created", unreachable="no connection"), path=JOB_PATH)
    expect(page.get_by_role("status")).to_have_text("Unknown")
    expect(page.locator("#notices")).to_contain_text("Its status is unknown here; its task last saw it Created.")


def test_the_page_of_a_job_that_cannot_be_read_shows_an_end_that_its_task_has_seen(open_page):
    page = open_page(job(status="Complete", unreachable="no connection"), path=JOB_PATH)
    expect(page.get_by_role("status")).to_have_text("Complete")
    assert "unknown here" not in page.locator("#notices").inner_text()


def test_the_page_of_a_deleted_job_says_who_deleted_it_and_how_far_it_came(open_page):
    deleted = {"by": "ada", "at": CREATED, "step": 5, "total": 10}
    seen = {"step": 3, "total": 10, "percentage": 30}
    page = open_page(job(status="Failed", unreachable="gone", deleted=deleted, progress=seen), path=JOB_PATH)
    expect(page.get_by_role("status")).to_have_text("Deleted")
    expect(page.locator("#notices")).to_contain_text("Deleted by ada on")
    expect(page.locator("#progress")).to_have_text("Stopped at step 5 of 10")


def test_the_processes_of_a_cancelled_job_are_not_shown_as_failed(open_page):
    steps = [{"name": "node-0", "status": "Failed", "started": CREATED, "finished": CREATED, "exit_code": -15}]
    diagnosis = {"category": "Deleted", "reason": "it was cancelled"}
    page = open_page(job(status="Cancelled", steps=steps, diagnosis=diagnosis), path=JOB_PATH)
    expect(page.get_by_role("row", name="node-0")).to_contain_text("Cancelled")
    expect(page.locator("[data-status=Failed]")).to_have_count(0)
    expect(page.locator("#notices")).to_have_text("CancelledAirflow does not retry a cancelled TrainJob.")


def test_the_page_names_the_job_of_its_url_before_the_answer(open_page):
    requests = []
    page = open_page({f"api/dags/{TASK['dag_id']}/job": requests}, path=JOB_PATH)
    expect(page.get_by_role("heading", level=1)).to_have_text(TASK["task_id"])
    expect(page.locator("#facts")).to_contain_text(TASK["dag_id"])
    expect(page.locator(".skeleton")).to_be_visible()
    requests[0].fulfill(json=job(status="Created", unreachable="no connection")[f"api/dags/{TASK['dag_id']}/job"])
    expect(page.locator("#facts")).to_contain_text("kubernetes")
    expect(page.locator(".skeleton")).to_have_count(0)


def test_the_page_of_a_queued_job_says_so(open_page):
    page = open_page(job(status="Created", queued=QUEUED), path=JOB_PATH)
    expect(page.locator("#notices")).to_contain_text(f"This TrainJob is {QUEUED}.")


def test_the_page_of_a_job_has_its_restarts_with_their_causes_and_the_budget(open_page):
    lost = {"category": "NodeLost", "step": 1200.0, "at": CREATED, "counted": True, "delay": 10.0, "seconds": 90.0}
    unknown = {**lost, "category": "OfALaterVersion", "step": None, "at": None, "counted": False}
    restarts = {"text": "1 of 3 (OfALaterVersion; 1 more was free)", "causes": [lost, unknown]}
    page = open_page(job(status="Running", restarts=restarts), path=JOB_PATH)
    expect(page.locator("#facts")).to_contain_text("Restarts1 of 3 (OfALaterVersion; 1 more was free)")
    rows = page.get_by_role("table", name="Restarts").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("Node loststep 1,2001 min 30 s")
    expect(rows.nth(1)).to_contain_text("yes")
    expect(rows.nth(2)).to_have_text("OfALaterVersion1 min 30 sno")


def test_the_page_of_a_job_without_restarts_has_the_budget_only(open_page):
    page = open_page(job(status="Running", restarts={"text": "0 of 3"}), path=JOB_PATH)
    expect(page.locator("#facts")).to_contain_text("Restarts0 of 3")
    expect(page.get_by_role("table", name="Restarts")).to_have_count(0)


def test_the_page_of_a_job_links_to_its_run_and_its_asset(open_page):
    asset, run = {"id": 7, "name": "digits"}, "https://mlflow.example/#/experiments/1/runs/2"
    page = open_page(job(status="Complete", unreachable="no connection", assets=[asset], mlflow_run=run), path=JOB_PATH)
    expect(page.get_by_role("link", name="digits")).to_have_attribute("href", "http://airflow/assets/7")
    expect(page.get_by_role("link", name="MLflow run")).to_have_attribute("href", run)
