"""`make pictures`: the pictures of README and documentation, from a running Airflow and a real KFP step.

Starts a complete Airflow with `pictures_dag.py`, opens its pages in Chromium, and writes PNG files into
`docs/pictures/`. Needs Chromium (`apt-get install chromium`). Takes a few minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from urllib.parse import urlencode

import httpx
from airflow_here import ROOT, AirflowHere, AirflowHereError, wait_until
from airflow_rest import Api, Run
from pictures_dag import train
from playwright.sync_api import Browser, Error as BrowserError, FrameLocator, Locator, Page, Route, sync_playwright

from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient

PICTURES = ROOT / "docs" / "pictures"
_DAG = "nightly_classifier"
_DAGS = (_DAG, "weekly_classifier", "monthly_classifier", "classifier_sweep", "classifier_search")
_WIDTH = 1200  # pixels
_MAX_BYTES = 200_000
_TIMEOUT = 120_000  # milliseconds, for busy machines
_MIN_PERCENTAGE = 45  # of the training, so that its curves have a shape


class PictureError(Exception):
    """A picture cannot be made; the message is one line."""


def main() -> int:
    # Not in the clone: paths are visible in the pictures.
    folder = Path(tempfile.mkdtemp(prefix="pictures-"))
    PICTURES.mkdir(exist_ok=True)
    try:
        with start_browser() as browser:
            make_airflow_pictures(browser, folder)
            make_report_picture(browser, folder)
    except (AirflowHereError, PictureError, BrowserError, httpx.HTTPError) as error:
        print(f"pictures: {error}; the logs are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start Chromium without a window.

    Raises:
        PictureError: Chromium is not on PATH.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise PictureError("Chromium is not on PATH; install it: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def make_airflow_pictures(browser: Browser, folder: Path) -> None:
    """Run trainings in Airflow, and take pictures of their pages and of the list."""
    dags = folder / "dags"
    dags.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "pictures_dag.py", dags)
    airflow = AirflowHere(folder / "airflow", {"AIRFLOW__CORE__DAGS_FOLDER": str(dags)})
    jobs = TrainerClient(LocalProcessBackendConfig(home=airflow.jobs))
    try:
        with airflow:
            api = Api(airflow)
            for dag in _DAGS:
                api.unpause(dag)
            failed, resumed, sweep, search = [api.start(dag) for dag in _DAGS[1:]]
            for run in (failed, resumed, sweep, search):
                run.wait()
            running = api.start(_DAG)
            running.wait_for_task("train", "deferred")
            page = open_airflow(browser, airflow, api)
            picture_running_job(page, running)
            picture_task_log(page, running)
            picture_list(page)
            picture_failed_job(page, failed)
            picture_attempts(page, resumed)
            picture_comparison(page, sweep)
            picture_search(page, search)
            picture_ended_jobs(page, running)
            picture_states_of_the_list(page)
    finally:
        for job in jobs.list_jobs():
            jobs.delete_job(job.name)


def open_airflow(browser: Browser, airflow: AirflowHere, api: Api) -> Page:
    """Return a page of a logged-in user with the light theme."""
    context = browser.new_context(
        base_url=airflow.url, viewport={"width": _WIDTH, "height": 800}, color_scheme="light", locale="en-GB"
    )
    context.set_default_timeout(_TIMEOUT)
    token = api.request("POST", "/auth/token", {"username": "admin", "password": airflow.password})["access_token"]
    context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
    context.add_init_script("localStorage.setItem('theme', 'light')")
    return context.new_page()


def open_job(page: Page, run: Run, height: int) -> FrameLocator:
    name = wait_until(lambda: run.job("train"), "the task has submitted its TrainJob")
    page.set_viewport_size({"width": _WIDTH, "height": height})
    page.goto("/plugin/trainjobs")
    frame = page.frame_locator("iframe[title=TrainJobs]")
    frame.get_by_role("link", name=name).click()
    frame.get_by_role("status").wait_for()
    return frame


def picture_running_job(page: Page, run: Run) -> None:
    frame = open_job(page, run, 850)
    bar = frame.get_by_role("progressbar", name="Progress of the training")
    wait_until(lambda: float(bar.get_attribute("value") or 0) >= _MIN_PERCENTAGE, "the training is half done")
    frame.get_by_role("img", name="loss").wait_for()
    frame.get_by_role("log").filter(has_text="epoch").wait_for()
    save(page, "trainjob-running")


def picture_failed_job(page: Page, run: Run) -> None:
    frame = open_job(page, run, 858)
    frame.get_by_role("log").filter(has_text="generating").wait_for()
    save(page, "trainjob-failed")


def picture_attempts(page: Page, run: Run) -> None:
    """Page of a job whose first attempt was killed: its curves are pale, and a mark shows where it was resumed."""
    open_task(page, run, 1070)
    page.get_by_role("table", name="Attempts").wait_for()
    page.get_by_text("resumed from step").last.wait_for()
    save(page, "trainjob-attempts")


def picture_comparison(page: Page, run: Run) -> None:
    page.goto(f"/trainjobs/?dag={run.dag}")
    boxes = page.get_by_role("checkbox", name="Compare")
    boxes.nth(2).wait_for()
    for box in boxes.all():
        box.check()
    page.get_by_role("link", name="Compare").click()
    page.set_viewport_size({"width": _WIDTH, "height": 910})
    page.get_by_role("list", name="Curves").get_by_role("listitem").nth(2).wait_for()
    save(page, "trainjobs-compare")


def picture_search(page: Page, run: Run) -> None:
    page.set_viewport_size({"width": _WIDTH, "height": 1180})
    page.goto(f"/trainjobs/search?{urlencode({'dag_id': run.dag, 'run_id': run.run_id, 'task_id': 'tune'})}")
    page.get_by_role("list", name="Curves").get_by_role("listitem").nth(4).wait_for()
    save(page, "trainjobs-search")


def picture_ended_jobs(page: Page, run: Run) -> None:
    """Page of a job that was cancelled, and then deleted."""
    run.fail()
    open_task(page, run, 640)
    page.get_by_role("status").filter(has_text="Cancelled").wait_for()
    page.get_by_role("img", name="loss").wait_for()
    save(page, "trainjob-cancelled")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("status").filter(has_text="Deleted").wait_for()
    page.set_viewport_size({"width": _WIDTH, "height": 310})
    save(page, "trainjob-deleted")


def picture_states_of_the_list(page: Page) -> None:
    """The list without an answer, without a job, and with an API server that is away."""
    page.set_viewport_size({"width": _WIDTH, "height": 420})
    unanswered: list[Route] = []
    page.route("**/api/jobs*", lambda route: unanswered.append(route))
    page.goto("/trainjobs/")
    save(page, "trainjobs-loading")
    unanswered[0].abort()
    page.get_by_role("alert").wait_for()
    save(page, "trainjobs-error")
    page.unroute_all()
    page.goto("/trainjobs/?text=transformer")
    page.get_by_role("button", name="Clear filters").wait_for()
    save(page, "trainjobs-empty")


def open_task(page: Page, run: Run, height: int) -> None:
    """Open the page of a run's job without Airflow's frame."""
    page.set_viewport_size({"width": _WIDTH, "height": height})
    page.goto(f"/trainjobs/job?{urlencode({'dag_id': run.dag, 'run_id': run.run_id, 'task_id': 'train'})}")


def picture_list(page: Page) -> None:
    page.goto("/trainjobs/?column=metric.loss&column=duration")
    page.set_viewport_size({"width": _WIDTH, "height": 800})
    page.get_by_role("link", name="train").first.wait_for()
    save(page, "trainjobs-list")
    page.set_viewport_size({"width": 390, "height": 700})
    save(page, "trainjobs-phone")


def picture_task_log(page: Page, run: Run) -> None:
    """Log of a deferred task in Airflow's own page."""
    page.set_viewport_size({"width": _WIDTH, "height": 720})
    page.goto(f"/dags/{_DAG}/runs/{run.run_id}/tasks/train")
    page.get_by_text("epoch").last.wait_for()
    save(page, "task-log")


def make_report_picture(browser: Browser, folder: Path) -> None:
    """Run a KFP step and take a picture of its report."""
    report = run_kfp_step(folder)
    # The page is narrow: enlarged, it is as wide as the other pictures.
    page = browser.new_page(
        viewport={"width": _WIDTH * 2 // 3, "height": 400}, device_scale_factor=1.5, color_scheme="light"
    )
    page.goto(report.as_uri())
    save(page, "kfp-report", page.locator("html"))


def run_kfp_step(folder: Path) -> Path:
    """Train in a KFP pipeline on this machine; return the file of the report."""
    os.environ["TRAINJOB_HOME"] = str(folder / "kfp-jobs")
    from kfp import dsl

    from kfp_components.tasks import train_task
    from kfp_components.testing import host_runner

    @dsl.pipeline(name="nightly-classifier")
    def train_in_a_pipeline():  # type: ignore[no-untyped-def]  # noqa: ANN202 - KFP cannot read `-> None`
        trainer = CustomTrainer(func=train, func_args={"seconds_per_epoch": 0.04})
        train_task(trainer=trainer, runtime="python", wait=True)

    with (folder / "kfp.log").open("w") as log, redirect_stdout(log), redirect_stderr(log), host_runner(folder / "kfp"):
        train_in_a_pipeline()
    (report,) = (folder / "kfp").rglob("report")
    page = report.with_suffix(".html")
    shutil.copy(report, page)
    return page


def save(page: Page, name: str, part: Locator | None = None) -> None:
    """Write a picture.

    Raises:
        PictureError: The file is too large for a documentation page.
    """
    file = PICTURES / f"{name}.png"
    data = part.screenshot(path=file) if part else page.screenshot(path=file)
    print(f"{file.relative_to(ROOT)}  {len(data) // 1000} kB", flush=True)
    if len(data) > _MAX_BYTES:
        raise PictureError(f"{file} has {len(data)} bytes, more than {_MAX_BYTES}: make its part of the page smaller")


if __name__ == "__main__":
    sys.exit(main())
