"""The TrainJobs page in a browser, with a running Airflow and real trainings.

Needs Chromium (`apt-get install chromium`); Playwright comes with `make install`. What the
browser shows is kept as build/screenshots/*.png.
"""

from __future__ import annotations

import json
import pathlib
import re
import urllib.parse
from datetime import datetime, timedelta, timezone

import chromium
import pytest
from routed_pages import leave
from standalone import until

from airflow_provider.ui import app
from trainer_core import LocalProcessBackendConfig, TrainerClient
from trainer_core.lifecycle.debugging import build_command

sync_api = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
expect = sync_api.expect

pytestmark = [
    pytest.mark.slow,
    # A whole Airflow starts.
    pytest.mark.timeout(1200),
    pytest.mark.skipif(chromium.find() is None, reason="needs Chromium on PATH: `apt-get install chromium`"),
]

_SCREENSHOTS = pathlib.Path(__file__).parents[3] / "build" / "screenshots"
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
#: Timeout in milliseconds for busy machines.
expect.set_options(timeout=300_000)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium.__file__, args=list(_QUIET), timeout=300_000)
        yield running
        running.close()


def is_elsewhere(url, airflow):
    return not url.startswith((airflow.url, "data:", "blob:", "about:"))


def of_a_user(browser, airflow, scheme):
    """A browser with a logged-in user. (The login of Airflow 3.1 does not redirect back to the page.)"""
    context = browser.new_context(base_url=airflow.url, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    token = airflow.ask("GET", "/auth/token")["access_token"]
    context.set_default_timeout(300_000)
    context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
    return context


class Window:
    """A page of a logged-in user, and its script errors, dialogs and requests to other hosts."""

    def __init__(self, browser, airflow):
        self.page = of_a_user(browser, airflow, "light").new_page()
        self.problems = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda each: is_elsewhere(each.url, airflow) and self.problems.append(each.url))


@pytest.fixture(scope="module")
def window(browser, airflow):
    return Window(browser, airflow)


@pytest.fixture
def page(window):
    """A page of the browser. Script errors and requests to other hosts fail the test."""
    yield window.page
    # The page polls. If a route still fetches its answer when the page is left, the next call raises an error.
    window.page.unroute_all(behavior="ignoreErrors")
    leave(window.page)
    problems, window.problems = window.problems, []
    assert problems == []


class Training:
    """A task with a running training, and the gate that lets it finish."""

    def __init__(self, airflow, folder):
        self.gate = folder / "gate"
        self.task = airflow.start("train_digits", self.gate)
        self.name = self.task.training().name
        until(lambda: airflow.client.observe(self.name).progress)


@pytest.fixture(scope="module")
def trains(airflow, tmp_path_factory):
    """A running job shared by tests that do not change it."""
    training = Training(airflow, tmp_path_factory.mktemp("trains"))
    yield training
    training.gate.touch()


@pytest.fixture
def own(airflow, tmp_path):
    """A running job that the test can change."""
    return Training(airflow, tmp_path)


def opened(page, training):
    """Open the page of a job from the list."""
    page.goto("/trainjobs/")
    page.get_by_role("link", name=training.name).click()
    expect(page.locator("#facts")).to_contain_text(training.name)
    expect(page.get_by_role("status")).to_have_text("Running")
    return page


@pytest.fixture
def job_page(page, trains):
    """Page of the shared job."""
    return opened(page, trains)


@pytest.fixture
def own_page(page, own):
    """Page of the test's own job."""
    return opened(page, own)


def keep(page, name):
    _SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=_SCREENSHOTS / f"{name}.png", full_page=True)


def test_the_list_shows_a_job_with_status_and_age(page, trains):
    page.goto("/trainjobs/")
    row = page.get_by_role("row", name=trains.name)
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("train_digits")
    expect(row.get_by_role("progressbar")).to_be_visible()
    expect(row.locator("time")).to_have_text(re.compile(r"\d+ (s|min|h)"))
    keep(page, "list-light")


def test_filters_of_the_list_are_kept_in_the_url(page, trains):
    page.goto("/trainjobs/")
    page.get_by_role("combobox", name="Status").select_option("Failed")
    expect(page.get_by_role("link", name=trains.name)).to_have_count(0)
    page.get_by_role("combobox", name="Status").select_option("Running")
    expect(page.get_by_role("link", name=trains.name)).to_be_visible()
    page.get_by_role("searchbox", name="Search").fill("no such job")
    expect(page.get_by_text("No TrainJobs match these filters.")).to_be_visible()
    page.reload()
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("no such job")


def test_progress_and_curves_are_updated_while_the_job_trains(job_page):
    bar = job_page.get_by_role("progressbar", name="Progress of the training")
    curve = job_page.get_by_role("img", name=re.compile("^loss from"))
    expect(curve).to_be_visible()
    before = int(bar.get_attribute("value")), curve.get_attribute("aria-label")
    expect(bar).not_to_have_attribute("value", str(before[0]))
    expect(curve).not_to_have_attribute("aria-label", before[1])
    keep(job_page, "job-light")


def test_the_log_is_updated_and_shown_as_text(job_page):
    log = job_page.get_by_role("log")
    expect(log).to_contain_text("<img src=x onerror=alert(1)>")
    before = log.inner_text()
    expect(log).not_to_have_text(before, use_inner_text=True)
    assert log.inner_text().startswith(before[:40])
    assert log.locator("img").count() == 0


@pytest.fixture
def growing_log(browser):
    """Page of a job whose log grows by one line with each request; the responses are fake."""
    static = pathlib.Path(app.__file__).with_name("static")
    begin = "2026-01-01T00:00:00+00:00"
    job = {"name": "train-1", "status": "Running", "created": begin, "started": begin, "actions": []}
    job["task"] = {"dag_id": "a", "run_id": "b", "task_id": "train", "map_index": -1}
    job["steps"] = [{"name": "node-0", "status": "Running", "started": begin}]
    asked = []

    def answer(route):
        address = urllib.parse.urlsplit(route.request.url)
        name = address.path.rpartition("/")[2]
        if name == "log":
            asked.append(name)
            first = json.loads(urllib.parse.parse_qs(address.query)["cursor"][0]).get("node-0", 0)
            lines = [f"line {number}." for number in range(first, len(asked))]
            cursor = json.dumps({"node-0": len(asked)})
            part = {"lines": lines, "times": [None] * len(lines), "points": [], "resources": []}
            route.fulfill(json={**part, "cursor": cursor, "complete": True, "left_out": 0})
        elif name == "attempts":
            route.fulfill(json={"attempts": []})
        elif "/api/" in address.path:
            route.fulfill(json=job)
        else:
            route.fulfill(path=app.find_asset(name) or static / "job.html")

    context = browser.new_context()
    context.route("**/*", answer)
    page = context.new_page()
    page.goto("http://airflow.test/trainjobs/job?dag_id=a&run_id=b&task_id=train")
    yield page
    context.close()


def test_overlapping_log_requests_show_no_line_twice(growing_log):
    log = growing_log.get_by_role("log")
    expect(log).to_contain_text("line 0.")
    for _ in range(3):
        shown = log.inner_text()
        growing_log.evaluate("['1', '2'].forEach(() => document.dispatchEvent(new Event('visibilitychange')))")
        expect(log).not_to_have_text(shown, use_inner_text=True)
    lines = log.inner_text().splitlines()
    assert len(lines) == len(set(lines))


def test_the_log_keeps_its_scroll_position(job_page):
    log = job_page.get_by_role("log")
    until(lambda: log.evaluate("place => place.scrollHeight > place.clientHeight + 100"))
    # A line that arrives at the same time can scroll to the end once; scroll again.
    until(lambda: log.evaluate("place => { place.scrollTop = 0 }") or not job_page.get_by_label("Follow").is_checked())
    before = log.inner_text()
    expect(log).not_to_have_text(before, use_inner_text=True)
    assert log.evaluate("place => place.scrollTop") == 0


def test_steps_and_events_are_shown(job_page):
    expect(job_page.get_by_role("table", name="Steps")).to_contain_text("node-0")
    expect(job_page.get_by_role("table", name="Events")).to_be_visible()
    # No restarts, no failure, no result.
    expect(job_page.get_by_role("columnheader", name="Restarts")).to_have_count(0)
    expect(job_page.get_by_role("heading", name="Result")).to_have_count(0)
    expect(job_page.locator("#notices")).to_be_empty()


def test_the_manifest_opens(job_page):
    job_page.get_by_text("Manifest", exact=True).click()
    expect(job_page.locator("#manifest pre")).to_contain_text("runtime: python")


def confirm_suspend(page):
    page.get_by_role("button", name="Suspend", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("what they have not saved is lost")
    dialog.get_by_role("button", name="Suspend").click()


def test_a_job_is_suspended_and_resumed(own_page):
    confirm_suspend(own_page)
    expect(own_page.get_by_role("status")).to_have_text("Suspended")
    keep(own_page, "job-suspended")
    own_page.get_by_role("button", name="Resume").click()
    expect(own_page.get_by_role("status")).to_have_text("Running")
    expect(own_page.get_by_role("button", name="Suspend")).to_be_visible()


def test_times_after_a_resume_count_from_the_resume(job_page):
    now = datetime.now(timezone.utc)

    def resume(route):
        answer = route.fetch()
        job = answer.json()
        job |= {"started": str(now - timedelta(hours=5)), "progress": {"step": 1, "total": 2, "percentage": 50}}
        job["steps"] = [
            {"name": "node-0", "status": "Running", "started": str(now - timedelta(minutes=30))},
            {"name": "node-1", "status": "Pending", "started": str(now - timedelta(hours=5)), "finished": str(now)},
        ]
        route.fulfill(response=answer, json=job)

    job_page.route("**/api/**/job?*", resume)
    expect(job_page.locator("#progress")).to_contain_text(re.compile("about 3[0-9] min"))
    expect(job_page.locator("#facts")).to_contain_text(re.compile("Running for3[0-9] min"))
    expect(job_page.get_by_role("row").filter(has_text="node-1")).not_to_contain_text("h")


def test_a_refused_action_is_shown_until_the_next_action(job_page):
    refusal = "It is being maintained by another user."
    job_page.route("**/suspend?*", lambda route: route.fulfill(status=409, json={"detail": refusal}))
    confirm_suspend(job_page)
    expect(job_page.get_by_role("alert")).to_have_text(refusal)
    for _ in range(2):
        job_page.wait_for_event("response", lambda answer: "/job?" in answer.url)
    expect(job_page.get_by_role("alert")).to_have_text(refusal)


def test_deleting_a_job_needs_a_confirmation_and_works_by_keyboard(own_page, airflow, own):
    delete = own_page.get_by_role("button", name="Delete", exact=True).first
    delete.focus()
    own_page.keyboard.press("Enter")
    expect(own_page.get_by_role("dialog")).to_be_visible()
    expect(own_page.get_by_role("button", name="Keep")).to_be_focused()
    keep(own_page, "job-delete")
    own_page.keyboard.press("Escape")
    expect(own_page.get_by_role("dialog")).to_be_hidden()
    assert own.name in [job.name for job in airflow.client.list_jobs()]
    own_page.keyboard.press("Enter")
    expect(own_page.get_by_role("dialog")).to_be_visible()
    own_page.keyboard.press("Tab")
    own_page.keyboard.press("Enter")
    expect(own_page.get_by_text("Deleted by")).to_be_visible()
    assert own.name not in [job.name for job in airflow.client.list_jobs()]
    keep(own_page, "job-deleted")


def test_a_job_can_be_opened_by_keyboard(page, trains):
    page.goto("/trainjobs/")
    link = page.get_by_role("link", name=trains.name)
    expect(link).to_be_visible()
    page.get_by_label(f"Compare {trains.name}").focus()
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#facts")).to_contain_text(trains.name)


def test_a_finished_job_shows_its_result(own_page, own):
    own.gate.touch()
    expect(own_page.get_by_role("status")).to_have_text("Complete")
    expect(own_page.get_by_role("region", name="Result")).to_contain_text("s3://models/digits/17")
    expect(own_page.get_by_role("button", name="Suspend")).to_have_count(0)
    keep(own_page, "job-complete")


def test_a_failed_job_shows_its_diagnosis(page, airflow, tmp_path):
    ref = airflow.start("train_broken", tmp_path / "gate").submitted()
    until(lambda: airflow.client.observe(ref).outcome)
    page.goto("/trainjobs/?dag=train_broken")
    page.get_by_role("link", name=ref.name).click()
    expect(page.get_by_role("heading", name="Error in your code")).to_be_visible()
    expect(page.locator("#notices")).to_contain_text("no such file: /data/digits.npz")
    expect(page.locator("#notices code")).to_have_text(build_command(ref))
    keep(page, "job-failed")


@pytest.fixture
def elsewhere(airflow, tmp_path):
    """A running task whose jobs are in a state folder that the API server does not read, and a client for it."""
    client = TrainerClient(LocalProcessBackendConfig(home=airflow.home / "elsewhere"))
    task = airflow.start("train_elsewhere", tmp_path / "gate")
    task.submitted()
    yield task, client
    for job in client.list_jobs():
        client.delete_job(job.name)


def test_an_unreachable_job_shows_the_xcoms_of_its_task(page, elsewhere):
    name = elsewhere[0].ref()["name"]
    page.goto("/trainjobs/")
    page.get_by_role("link", name=name).click()
    expect(page.locator("#notices")).to_contain_text("The API server cannot read this TrainJob")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("progressbar", name="Progress of the training")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^loss from"))).to_be_visible()
    expect(page.get_by_role("region", name="Log")).to_have_count(0)
    keep(page, "job-unreachable")


def test_an_unreachable_job_is_stopped_and_run_again_through_its_task(page, elsewhere):
    task, client = elsewhere
    first = task.ref()["name"]
    task.is_now("deferred")
    page.goto("/trainjobs/")
    page.get_by_role("link", name=first).click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Task state", exact=True).locator("..")).to_contain_text("failed")
    # Airflow on SQLite can lose the clearing of a task while its DAG run is being marked as failed.
    until(lambda: task.run_state() == "failed")
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator("#facts dd").first).not_to_have_text(first)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert until(lambda: client.observe(first).outcome).diagnosis.reason == "it was cancelled"
    assert len(client.list_jobs()) == 2


def test_the_page_follows_the_dark_mode_of_the_browser(browser, airflow, trains):
    context = of_a_user(browser, airflow, "dark")
    page = context.new_page()
    page.goto("/trainjobs/")
    page.get_by_role("link", name=trains.name).click()
    expect(page.get_by_role("img", name=re.compile("^loss"))).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 19)"
    keep(page, "job-dark")
    context.close()


def test_in_airflows_frame_the_page_uses_its_theme_and_links_to_the_task(page, trains):
    page.goto("/trainjobs/")
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.goto("/plugin/trainjobs")
    frame = page.frame_locator("iframe[title=TrainJobs]")
    frame.get_by_role("link", name=trains.name).click()
    expect(frame.locator("#facts")).to_contain_text(trains.name)
    background = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert background == "rgb(17, 17, 19)"
    expect(frame.get_by_role("img", name=re.compile("^loss"))).to_be_visible()
    keep(page, "airflow-dark")
    frame.get_by_role("link", name=re.compile("train_digits .* train$")).click()
    page.wait_for_url("**/dags/train_digits/runs/**/tasks/train**")


def test_the_extra_link_of_a_task_opens_its_job(page, trains):
    page.goto(f"/dags/train_digits/runs/{trains.task.run}/tasks/train/details")
    # Some versions of Airflow open the link in a new window.
    page.goto(page.get_by_role("link", name="TrainJob", exact=True).get_attribute("href"))
    expect(page.get_by_role("heading", level=1)).to_have_text("train")
