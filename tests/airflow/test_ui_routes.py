"""Routes of the TrainJobs page in a real API server: permissions and responses."""

from __future__ import annotations

import datetime
import json
import threading
import urllib.parse

import airflow
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from airflow_database import count_dags, count_rows, many_jobs
from fake_cluster import Cluster
from ui_scene import EDITOR, OUTSIDER, VIEWER, Browser, a_dag, push, ref_of, task_of, training

from airflow_provider.assets import ModelAsset
from airflow_provider.decorators.trainjob import TrainJobDecoratedOperator
from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.person_actions import ACTION_KEY, SuspensionWatch
from airflow_provider.plugins.trainjob import TrainJobPlugin
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.ui import app, backend_view, xcom_queries
from trainer_core import CustomTrainer, CustomTrainerContainer, RestartPolicy
from trainer_core.model.request import Owner, SearchEntry, TrainJobRequest
from trainer_core.testing.training_functions import exit_with

pytestmark = pytest.mark.slow  # 40 s of processor: many tests train a job through a DAG

_PAGES = [
    "/",
    "/job",
    "/compare",
    "/search",
    "/assets/{name}",
    "/api/jobs",
    "/api/compare",
    *(f"/api/dags/{{dag_id}}/{name}" for name in ("job", "attempts", "search", "log", "log/file", "manifest")),
]
_ACTIONS = ("suspend", "resume", "delete")
_CHANGES = [f"/api/dags/{{dag_id}}/{name}" for name in _ACTIONS]
_OF_A_JOB = ["api/job", "api/attempts", "api/log", "api/manifest"]


@pytest.fixture(scope="module", autouse=True)
def one_app():
    """Create the API server once for all tests of this file."""
    yield
    from airflow.api_fastapi.app import purge_cached_app

    purge_cached_app()


@pytest.fixture
def server(monkeypatch, airflow_db):
    """API server with the plugin, and its auth manager."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "ui_auth.ByDag")
    monkeypatch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET", "long enough for the tests, and for HS512, which wants 64 bytes!!!!"
    )
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "editor:user")
    from airflow.api_fastapi.app import cached_app, get_auth_manager
    from fastapi.testclient import TestClient

    return TestClient(cached_app(apps="core"), base_url="http://airflow"), get_auth_manager


@pytest.fixture
def browse(server):
    client, manager = server
    return lambda user, task=None: Browser(client, manager(), user, task)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def submitted(run_dag, gate, home):
    """Run a DAG whose task submits a job that runs until the gate exists; return the task."""

    def run(dag_id, **arguments):
        return task_of(run_dag(a_dag(dag_id, training(gate, **arguments))))

    return run


def hostile_xcoms():
    """Return what a task can push instead of an XCom of the provider."""
    plain = [1, -1.5, True, "", "text", "{", [], {}, [1], [{"trial": {}, "parameters": {}}], {"a": {"b": [1]}}]
    keys = ("category", "reason", "step", "percentage", "metrics", "accuracy", "by", "at", "lr", "silent")
    return [*plain, *(dict.fromkeys(keys, each) for each in ({}, [1], "text", {"x": {}}, {"x": "y"}, None, 10**400))]


def until(condition):
    pause = threading.Event()
    while not (found := condition()):
        pause.wait(0.05)
    return found


@pytest.fixture
def trains(submitted, client):
    """A task with a running job that has written its first lines."""

    def run(dag_id, **arguments):
        task = submitted(dag_id, **arguments)
        ref = ref_of(task)
        until(lambda: any("waiting" in line for line in client.get_job_logs(ref.name)) or client.observe(ref).outcome)
        return task

    return run


@pytest.mark.parametrize(
    ("path", "method"), [*((path, "GET") for path in _PAGES), *((path, "POST") for path in _CHANGES)]
)
def test_every_route_needs_a_login(server, path, method):
    url = f"/trainjobs{path}?run_id=b&task_id=c".replace("{name}", "page.js").replace("{dag_id}", "a")
    assert server[0].request(method, url, headers={"X-TrainJobs": "1"}).status_code == 401


def test_there_are_no_other_routes(server):
    from airflow_provider.ui.app import create_app

    assert [route.path for route in create_app().routes] == [*_PAGES, *_CHANGES]


def sent_to(server):
    """Return the redirect of a page without a login."""
    answer = server[0].get("/trainjobs/job?dag_id=a", headers={"Accept": "text/html"}, follow_redirects=False)
    assert answer.status_code == 302
    return answer.headers["location"]


def test_a_page_without_a_login_redirects_to_the_login(server):
    assert "login" in sent_to(server)


@pytest.mark.skipif(airflow.__version__.startswith("3.1."), reason="Airflow 3.1 forgets at a login what was asked for")
def test_the_login_redirects_back_to_the_page(server):
    assert urllib.parse.quote_plus("/trainjobs/job?dag_id=a") in sent_to(server)


@pytest.mark.parametrize("path", ["", "job", "assets/page.js", "assets/trainjobs.css", "assets/icon.svg"])
def test_pages_have_a_strict_content_security_policy(browse, path):
    answer = browse(VIEWER).get(path)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["..%2Fapp.py", "jobs.html", "nothing.js"])
def test_only_files_of_the_page_are_served_as_assets(browse, name):
    assert browse(VIEWER).get(f"assets/{name}").status_code == 404


def test_the_list_has_the_jobs_of_readable_dags_only(browse, submitted):
    submitted("open_list")
    submitted("closed_list")
    of_outsider = browse(OUTSIDER).get("api/jobs").json()
    of_viewer = browse(VIEWER).get("api/jobs").json()
    assert "closed_list" not in str(of_outsider)
    assert {"open_list", "closed_list"} <= set(of_viewer["dags"])


def test_filtering_by_an_unreadable_dag_finds_no_job(browse, submitted):
    submitted("closed_by_name")
    assert browse(OUTSIDER).get("api/jobs", dag="closed_by_name").json()["jobs"] == []


def test_the_job_of_an_unreadable_dag_is_forbidden(browse, submitted):
    outsider = browse(OUTSIDER, submitted("closed_job"))
    assert {path: outsider.get(path).status_code for path in _OF_A_JOB} == dict.fromkeys(_OF_A_JOB, 403)


def test_a_second_dag_id_in_the_query_gives_no_access(browse, submitted):
    task = submitted("closed_twice")
    outsider = browse(OUTSIDER, task)
    assert outsider.get("api/job", dag_id="open").status_code == 403
    outsider.task = {**task, "dag_id": "open"}
    assert outsider.get("api/job", dag_id="closed_twice").status_code == 404


def test_the_dag_id_wildcard_gives_no_access(browse, submitted):
    assert browse(OUTSIDER, {**submitted("closed_all"), "dag_id": "~"}).get("api/job").status_code == 404


def test_a_viewer_cannot_change_a_job(browse, trains):
    viewer = browse(VIEWER, trains("open_look"))
    assert {action: viewer.post(f"api/{action}").status_code for action in _ACTIONS} == dict.fromkeys(_ACTIONS, 403)
    job = viewer.job()
    assert (job["actions"], job["read_only"], job["status"]) == ([], True, "Running")


def test_cross_site_requests_are_refused(browse, trains):
    editor = browse(EDITOR, trains("open_forged"))
    forged = [{"X-TrainJobs": ""}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
    assert [editor.post("api/delete", **headers).status_code for headers in forged] == [403] * 3
    assert editor.job()["status"] == "Running"


def test_an_editor_suspends_and_resumes_a_job(browse, trains):
    editor = browse(EDITOR, trains("open_suspend"))
    assert editor.job()["actions"] == ["suspend", "delete"]
    assert editor.post("api/suspend").status_code == 204
    until(lambda: editor.job()["status"] == "Suspended")
    assert editor.job()["actions"] == ["resume", "delete"]
    assert editor.post("api/resume").status_code == 204
    until(lambda: editor.job()["status"] == "Running")


def test_the_page_of_a_deleted_job_shows_who_deleted_it(browse, trains, client):
    task = trains("open_delete")
    editor = browse(EDITOR, task)
    name = ref_of(task).name
    assert editor.post("api/delete").status_code == 204
    assert name not in [job.name for job in client.list_jobs()]
    deleted = editor.job()["deleted"]
    assert (deleted["by"], deleted["step"], deleted["total"]) == ("editor", 4, 4)
    assert name not in str(browse(EDITOR).get("api/jobs", dag="open_delete").json()["jobs"])


def test_a_change_is_recorded_in_the_audit_log_and_for_the_log_of_the_task(browse, trains):
    from airflow.models.log import Log
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    browse(EDITOR, trains("open_audit")).post("api/suspend")
    with create_session() as session:
        entry = session.scalars(select(Log).where(Log.event == "trainjob_suspend", Log.dag_id == "open_audit")).one()
        assert (entry.owner, entry.task_id) == ("editor", "train")
        recorded = select(XComModel.value).where(XComModel.key == "trainjob_action", XComModel.dag_id == "open_audit")
        assert session.scalars(recorded).one()["action"] == "suspend"


def test_a_task_reads_who_changed_its_job(browse, trains, run_dag, xcom):
    trained = trains("open_acted")
    browse(EDITOR, trained).post("api/suspend")

    @task
    def describe(ti=None):
        key = {"dag_id": trained["dag_id"], "task_ids": "train", "run_id": trained["run_id"], "key": ACTION_KEY}
        watch = SuspensionWatch("it")
        return [watch.has_changed("Running"), watch.has_changed("Suspended"), watch.describe(ti.xcom_pull(**key))]

    with DAG("open_reader", schedule=None) as dag:
        describe()
    assert xcom(run_dag(dag), "describe")[2] == "TrainJob it was suspended by editor on the TrainJobs page"


def test_a_job_claimed_by_another_dag_is_not_shown(browse, submitted, trains):
    theirs, mine = trains("closed_victim"), submitted("open_claims")
    push(mine, "ref", ref_of(theirs).to_dict())
    job = browse(OUTSIDER, mine).job()
    assert "belongs to another task" in job["unreachable"]
    assert {"steps", "events"}.isdisjoint(job)
    assert browse(OUTSIDER, mine).get("api/log").status_code == 409
    assert browse(OUTSIDER, mine).post("api/delete").status_code == 409


def test_a_job_whose_result_a_task_reused_is_not_changed_on_its_page(browse, submitted, trains):
    theirs, mine = trains("closed_earlier"), submitted("open_reuses")
    push(mine, "ref", {**ref_of(theirs).to_dict(), "reused": True})
    job = browse(OUTSIDER, mine).job()
    assert job["unreachable"].endswith("belongs to another run, and this task reused its result")
    assert browse(OUTSIDER, mine).post("api/delete").status_code == 409


def test_a_job_claimed_by_another_dag_has_no_status_in_the_list(browse, submitted, trains):
    theirs, mine = trains("closed_victim_of_list"), submitted("open_claims_in_list")
    push(mine, "ref", ref_of(theirs).to_dict())
    push(mine, "status", None)
    (row,) = browse(OUTSIDER).get("api/jobs", dag="open_claims_in_list").json()["jobs"]
    assert {"status", "progress"}.isdisjoint(row)


def test_a_running_job_has_progress(browse, trains):
    job = browse(VIEWER, trains("open_running")).job()
    assert job["progress"] == {"step": 4, "total": 4, "percentage": 100, "metrics": {"loss": 0.5}}
    assert [(step["name"], step["status"]) for step in job["steps"]] == [("node-0", "Running")]
    assert job["events"][0]["reason"]
    assert "diagnosis" not in job


@pytest.fixture
def retried(trains, client):
    """A task whose first attempt was cancelled, and whose second one runs; the names of both."""
    task = trains("open_attempts")
    first = ref_of(task)
    client.cancel(first)
    until(lambda: client.observe(first).outcome)
    second = client.retry(first)
    push(task, "ref", second.to_dict())
    until(lambda: client.observe(second).status == "Running")
    return task, first.name, second.name


def test_a_job_has_its_attempts_of_which_an_earlier_one_is_read_and_not_changed(browse, retried, submitted):
    task, first, second = retried
    editor = browse(EDITOR, task)
    attempts = editor.get("api/attempts").json()["attempts"]
    assert [(each["name"], each["number"]) for each in attempts] == [(first, 1), (second, 2)]
    ended = attempts[0]
    assert (ended["status"], ended["progress"]["step"], ended["reason"]) == ("Cancelled", 4, "it was cancelled")
    earlier = editor.get("api/job", attempt=first).json()
    assert (earlier["name"], earlier["status"], earlier["actions"]) == (first, "Cancelled", [])
    assert "<b>waiting</b>" in editor.get("api/log", attempt=first).json()["lines"]
    assert first in editor.get("api/log/file", attempt=first).headers["content-disposition"]
    another = ref_of(submitted("open_another")).name
    wrong = [editor.get(path, attempt=name).status_code for path in _OF_A_JOB for name in (another, "../etc", "none")]
    assert set(wrong) <= {200, 409}
    assert "belongs to another task" in editor.get("api/job", attempt=another).json()["unreachable"]
    assert editor.get("api/log", attempt=another).status_code == 409


def test_a_cancelled_job_is_not_one_of_the_failed_ones(browse, retried):
    task, _, second = retried
    editor = browse(EDITOR)
    rows = editor.get("api/jobs", dag="open_attempts", status="Running").json()["jobs"]
    assert second in [row["name"] for row in rows]
    push(task, "status", "Failed")
    push(task, "diagnosis", {"category": "Deleted", "reason": "it was cancelled", "retryable": False})
    push(task, "progress", {"step": 2, "total": 4, "percentage": 50})
    assert editor.get("api/jobs", dag="open_attempts", status="Failed").json()["jobs"] == []
    (row,) = editor.get("api/jobs", dag="open_attempts", status="Cancelled").json()["jobs"]
    assert (row["status"], row["progress"]["step"]) == ("Cancelled", 2)


def test_a_complete_job_has_metrics_and_artifacts(browse, run_dag, gate, home):
    gate.touch()
    task = task_of(run_dag(a_dag("open_complete", training(gate), wait_for_completion=True)))
    job = browse(EDITOR, task).job()
    assert (job["status"], job["metrics"]["accuracy"], job["actions"]) == ("Complete", 0.97, ["delete"])
    assert job["artifacts"] == {"model": "s3://models/one"}


def test_a_job_has_the_assets_of_its_task(browse, run_dag, gate):
    gate.touch()
    model, other = ModelAsset("digits-of-the-page"), ModelAsset("unrelated-of-the-page")
    dag = a_dag("open_asset", training(gate), wait_for_completion=True, outlets=[model])
    with dag:
        EmptyOperator(task_id="other", outlets=[other])
    (asset,) = browse(VIEWER, task_of(run_dag(dag))).job()["assets"]
    assert asset["name"] == "digits-of-the-page"


def square(x: float) -> dict:
    return {"loss": x * x}


def a_search(dag_id, **arguments):
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(dag_id, schedule=None, start_date=start) as dag:
        SearchOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(square),
            search_space={"x": [2.0, 1.0, 3.0]},
            algorithm="GridSearch",
            trial_config={"num_trials": 3, "parallel_trials": 2},
            **arguments,
        )
    return dag


@pytest.fixture
def searched(run_dag, home):
    """Task of a search that has ended."""
    return task_of(run_dag(a_search("tuned")))


def test_a_search_is_one_row_and_a_page_whose_trials_have_logs_and_are_compared(browse, searched, client):
    user = browse(EDITOR, searched)
    (row,) = browse(EDITOR).get("api/jobs", dag="tuned", column=["metric.loss", "param.x"]).json()["jobs"]
    assert (row["is_search"], row["status"], row["summary"]) == (
        True,
        "Complete",
        "3 of 3, best loss 1 (minimized, trial 1)",
    )
    assert row["columns"] == {"metric.loss": 1.0, "param.x": 1.0}

    page = user.get("api/search").json()
    assert (page["best"], page["metric"], page["space"]) == (1, "loss", {"x": {"choices": [2.0, 1.0, 3.0]}})
    assert [(trial["value"], trial["parameters"]) for trial in page["trials"]] == [
        (x * x, {"x": x}) for x in (2.0, 1.0, 3.0)
    ]
    names = [trial["job"] for trial in page["trials"]]
    trial = user.get("api/job", attempt=names[0]).json()
    assert (trial["name"], trial["status"], "is_search" in trial, trial["actions"]) == (names[0], "Complete", False, [])
    assert (trial["is_trial"], trial["parameters"]) == (True, {"x": "2.0"})
    assert user.get("api/log", attempt=names[2]).status_code == 200
    assert user.job()["is_search"]

    asked = [urllib.parse.urlencode({**searched, "attempt": name}) for name in names[:2]]
    compared = browse(EDITOR).get("api/compare", job=asked).json()
    assert [job["attempt"] for job in compared["jobs"]] == names[:2]
    assert {each["column"]: each["values"] for each in compared["rows"]}["metric.loss"] == [4.0, 1.0]


def test_a_search_whose_trainjobs_are_deleted_has_the_trials_of_its_xcoms(browse, searched, client):
    for job in client.list_jobs():
        client.delete_job(job.name)
    page = browse(EDITOR, searched).get("api/search").json()
    assert "does not exist" in page["unreachable"]
    assert (page["best"], page["summary"]) == (1, "3 of 3, best loss 1 (minimized, trial 1)")
    assert [trial["value"] for trial in page["trials"]] == [4.0, 1.0, 9.0]


def test_a_job_that_is_no_search_has_no_page_of_one(browse, submitted):
    assert browse(EDITOR, submitted("plain")).get("api/search").status_code == 404


@pytest.mark.parametrize(
    ("owner", "search", "belongs"),
    [
        ("mine", None, True),
        ("other", None, False),
        ("mine/3", ("mine", 3), True),
        ("mine/3", ("mine", 4), False),
        ("other/3", ("mine", 3), False),
        ("other/3", ("other", 3), False),
    ],
)
def test_a_trial_belongs_to_the_task_of_its_search_only(owner, search, belongs):
    entry = search and SearchEntry(key=search[0], entry=search[1], definition={})
    request = TrainJobRequest(owner=Owner(key=owner), search=entry)
    assert backend_view.belongs_to("mine", request) is belongs


def test_the_list_has_status_and_progress(browse, trains):
    trains("open_rows")
    (row,) = browse(VIEWER).get("api/jobs", dag="open_rows").json()["jobs"]
    assert (row["status"], row["progress"]["percentage"], row["task_id"]) == ("Running", 100, "train")


def test_a_sensor_has_no_row_in_the_list(browse, run_dag, gate):
    gate.touch()
    dag = a_dag("open_sensor", training(gate))
    with dag:
        TrainJobSensor(task_id="wait", job=dag.get_task("train").output, poke_interval=0.1)
    task = task_of(run_dag(dag))
    rows = browse(VIEWER).get("api/jobs", dag="open_sensor").json()["jobs"]
    assert [row["task_id"] for row in rows] == ["train"]
    assert browse(VIEWER, {**task, "task_id": "wait"}).get("api/job").status_code == 404


def test_a_change_is_recorded_for_the_log_of_a_sensor_in_the_same_run(browse, run_dag, gate):
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    gate.touch()
    dag = a_dag("open_watched", training(gate))
    with dag:
        TrainJobSensor(task_id="wait", job=dag.get_task("train").output, poke_interval=0.1)
    browse(EDITOR, task_of(run_dag(dag))).post("api/delete")
    with create_session() as session:
        recorded = select(XComModel.task_id).where(
            XComModel.key == "trainjob_action", XComModel.dag_id == "open_watched"
        )
        assert sorted(session.scalars(recorded)) == ["train", "wait"]


def test_an_unreachable_job_has_the_end_that_a_sensor_of_its_run_has_seen(browse, run_dag, gate, client):
    gate.touch()
    dag = a_dag("open_seen", training(gate))
    with dag:
        TrainJobSensor(task_id="wait", job=dag.get_task("train").output, poke_interval=0.1)
    task = task_of(run_dag(dag))
    push(task, "status", "Created")
    client.delete_job(ref_of(task))
    job = browse(VIEWER, task).job()
    (row,) = browse(VIEWER).get("api/jobs", dag="open_seen").json()["jobs"]
    assert "unreachable" in job
    assert (job["status"], job["metrics"], row["status"]) == ("Complete", {"accuracy": 0.97, "loss": 0.5}, "Complete")
    assert {"progress", "is_unknown"}.isdisjoint(row)


def test_an_unreachable_job_without_an_end_is_unknown_in_the_list(elsewhere, browse):
    push(elsewhere.task, "status", "Created")
    (row,) = browse(VIEWER).get("api/jobs", dag="open_elsewhere").json()["jobs"]
    assert (row["status"], row["is_unknown"]) == ("Created", True)


def test_a_queued_job_says_so_on_its_page_and_in_the_list(browse, run_dag, client, gate):
    single = {"max_parallel": 1}
    run_dag(a_dag("open_runs_first", training(gate), backend_config=single))
    queued = task_of(run_dag(a_dag("open_queued", training(gate), backend_config=single)))
    until(lambda: client.observe(ref_of(queued)).queued)
    (row,) = browse(VIEWER).get("api/jobs", dag="open_queued").json()["jobs"]
    assert row["waits_for"].startswith("queued: next to start")
    assert browse(VIEWER, queued).job()["queued"] == row["waits_for"]


def test_a_job_with_a_restart_policy_has_its_restarts(browse, run_dag, client):
    trainer = CustomTrainer(func=exit_with, func_args={"code": 3})
    policy = RestartPolicy(max_restarts=1, exit_codes={3: "count"}, delay=0)
    task = task_of(run_dag(a_dag("open_restarted", trainer, options=[policy])))
    client.wait(ref_of(task))
    restarts = browse(VIEWER, task).job()["restarts"]
    assert (restarts["text"], [each["category"] for each in restarts["causes"]]) == ("1 of 1 (UserCode)", ["UserCode"])


def test_a_job_without_a_connection_is_in_the_list(browse, run_dag, gate):
    run_dag(a_dag("open_without", training(gate), trainjob_conn_id=None))
    (row,) = browse(VIEWER).get("api/jobs", dag="open_without").json()["jobs"]
    assert row["status"] in ("Created", "Running")


def test_xcoms_are_read_as_plain_data(browse, submitted):
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    claim = json.dumps({"__classname__": "os.path", "__version__": 1, "__data__": {}})
    submitted("open_object")
    with create_session() as session:
        ours = (XComModel.dag_id == "open_object", XComModel.key == "status")
        session.execute(update(XComModel).where(*ours).values(value=claim))
    (row,) = browse(VIEWER).get("api/jobs", dag="open_object").json()["jobs"]
    assert row["task_id"] == "train"


def test_a_time_without_a_timezone_is_refused(browse):
    assert browse(VIEWER).get("api/jobs", before="2020-01-01T00:00:00").status_code == 422


def test_the_list_can_be_filtered(browse, trains):
    task, viewer = trains("open_filter"), browse(VIEWER)

    def shows(**filters):
        jobs = viewer.get("api/jobs", dag="open_filter", **filters).json()["jobs"]
        return task["run_id"] in [row["run_id"] for row in jobs]

    assert shows()
    assert shows(status="Running")
    assert not shows(status="Failed")
    assert shows(text="OPEN_filt")
    assert not shows(text="nothing like it")
    assert not shows(before="2020-01-01T00:00:00+00:00")


def test_the_list_has_and_filters_partitions(browse, run_dag, gate):
    gate.touch()
    keys = ["emea", "emea-2", 'Düsseldorf "Süd"', "东京"]
    for key in [None, *keys]:
        run_dag(a_dag("open_partitions", training(gate), wait_for_completion=True, partition=key))

    def list_shown(**filters):
        answer = browse(VIEWER).get("api/jobs", dag="open_partitions", column="partition", **filters).json()
        assert "partition" in answer["columns"]
        return [row.get("columns", {}).get("partition") for row in answer["jobs"]]

    assert list_shown() == [*reversed(keys), None]
    assert [list_shown(partition=key) for key in keys] == [[key] for key in keys]
    assert browse(VIEWER).get("api/jobs", dag="open_partitions", partition="mea").json()["jobs"] == []


def finished(run_dag, gate, dag_id):
    gate.touch()
    return task_of(run_dag(a_dag(dag_id, training(gate, password="hunter2-of-the-row"), wait_for_completion=True)))


def test_the_list_has_the_chosen_columns_of_a_job_that_its_backend_has_lost(browse, run_dag, gate, client):
    client.delete_job(ref_of(finished(run_dag, gate, "open_columns")))
    columns = ["param.gate", "param.password", "metric.accuracy", "duration", "param.none"]
    answer = browse(VIEWER).get("api/jobs", dag="open_columns", column=columns).json()
    (row,) = answer["jobs"]
    assert row["columns"].pop("duration") >= 0
    assert row["columns"] == {"param.gate": str(gate), "param.password": "***", "metric.accuracy": 0.97}
    assert answer["columns"][:2] == ["duration", "reason"]
    assert {"param.gate", "metric.accuracy", "metric.loss"} <= set(answer["columns"])
    assert (answer["total"], answer["older"]) == (1, None)


def test_the_list_is_sorted_by_a_column_and_limited_in_time(browse, run_dag, gate):
    for _ in range(2):
        finished(run_dag, gate, "open_sorted")
    older, newer = browse(VIEWER).get("api/jobs", dag="open_sorted", sort="created").json()["jobs"]
    assert older["created"] < newer["created"]
    rows = browse(VIEWER).get("api/jobs", dag="open_sorted", sort="-created", since=newer["created"]).json()["jobs"]
    assert [row["name"] for row in rows] == [newer["name"]]
    assert browse(VIEWER).get("api/jobs", dag="open_sorted", count=1).json()["jobs"] == rows
    to = browse(VIEWER).get("api/jobs", dag="open_sorted", before=newer["created"]).json()
    assert ([row["name"] for row in to["jobs"]], to["total"]) == ([older["name"]], 1)
    page = browse(VIEWER).get("api/jobs", dag="open_sorted", older_than=newer["created"]).json()
    assert ([row["name"] for row in page["jobs"]], page["total"]) == ([older["name"]], 2)


def compare(browser, *tasks):
    return browser.get("api/compare", job=[urllib.parse.urlencode(task) for task in tasks])


def test_jobs_are_compared_with_what_backend_and_xcoms_know(browse, run_dag, gate, client):
    lost, kept = (finished(run_dag, gate, "open_compared") for _ in range(2))
    client.delete_job(ref_of(lost))
    answer = compare(browse(VIEWER), lost, kept).json()
    rows = {row["column"]: (row["values"], row["differs"]) for row in answer["rows"]}
    assert [job["run_id"] for job in answer["jobs"]] == [lost["run_id"], kept["run_id"]]
    assert rows["param.gate"] == ([str(gate)] * 2, False)
    assert rows["param.password"] == (["***"] * 2, False)
    assert rows["metric.accuracy"] == ([0.97] * 2, False)
    assert rows["runtime"] == ([None, "python"], True)
    assert rows["artifact.model"] == (["s3://models/one"] * 2, False)


def test_a_job_of_an_unreadable_dag_is_compared_as_if_it_did_not_exist(browse, submitted):
    mine, theirs = submitted("open_compares"), submitted("closed_compared")
    answer, missing = (
        compare(browse(OUTSIDER), mine, each) for each in (theirs, {**theirs, "dag_id": "closed_nothing"})
    )
    assert (answer.status_code, missing.status_code) == (404, 404)
    assert answer.text.replace("closed_compared", "") == missing.text.replace("closed_nothing", "")


@pytest.mark.parametrize("job", ["", "dag_id=a", "dag_id=a&run_id=b&task_id=c&map_index=x", ["dag_id=a"] * 11])
def test_what_is_no_job_cannot_be_compared(browse, job):
    assert browse(VIEWER).get("api/compare", job=job).status_code == 422


@pytest.mark.parametrize("wrong", [{"column": "nme"}, {"sort": "-param."}, {"count": 101}, {"count": 0}])
def test_a_column_that_does_not_exist_is_refused(browse, wrong):
    assert browse(VIEWER).get("api/jobs", **wrong).status_code == 422


def test_the_list_reads_a_limited_number_of_rows_of_the_database(browse):
    lists = [{}, {"count": 100}, {"status": "Failed"}, {"text": "no such job"}, {"text": "e"}]
    with many_jobs(600, ended=300, sensors=100):
        read = []
        for filters in lists:
            with count_rows() as counted:
                assert browse(VIEWER).get("api/jobs", **filters).status_code == 200
            read.append(counted.rows)
    # One row for each DAG is Airflow's own, for the DAGs that the user may read.
    assert 0 < max(read) <= 200 + count_dags()


def test_an_xcom_with_any_value_costs_no_other_row(browse, submitted, gate):
    gate.touch()
    task = submitted("open_hostile")
    columns = ["duration", "reason", "partition", "metric.accuracy", "param.lr"]
    pages = [
        *((browse(VIEWER), "api/jobs", {"column": columns, "sort": each}) for each in ("", *columns)),
        *((browse(VIEWER, task), path, {}) for path in ("api/job", "api/search")),
        (browse(VIEWER), "api/compare", {"job": urllib.parse.urlencode(task)}),
    ]
    for value in hostile_xcoms():
        for key in (*xcom_queries._KEYS, "trials"):
            push(task, key, value)
        found = [user.get(path, **query).status_code for user, path, query in pages]
        assert found == [*[200] * 7, 404, 200], value


def test_pages_count_the_jobs_that_can_be_read(browse, submitted, monkeypatch):
    monkeypatch.setattr(app, "_MAX_ROWS", 2)
    tasks = [submitted(f"open_paged_{number}") for number in range(3)]
    push(tasks[1], "ref", {"name": "no ref"})
    first = browse(VIEWER).get("api/jobs").json()
    assert [row["dag_id"] for row in first["jobs"]] == ["open_paged_2"]
    older = browse(VIEWER).get("api/jobs", older_than=first["older"]).json()
    assert older["jobs"][0]["dag_id"] == "open_paged_0"


def test_a_filter_that_matches_nothing_reads_a_limited_number_of_jobs(browse, submitted, monkeypatch):
    monkeypatch.setattr(app, "_MAX_ROWS", 2)
    for number in range(3):
        submitted(f"open_many_{number}")
    answer = browse(VIEWER).get("api/jobs", text="open_many", status="Failed").json()
    older = browse(VIEWER).get("api/jobs", text="open_many", status="Failed", older_than=answer["older"]).json()
    assert (answer["jobs"], older["jobs"], older["older"]) == ([], [], None)
    monkeypatch.setattr(app, "_MAX_ROWS", 3)
    rows = browse(VIEWER).get("api/jobs", text="open_many").json()["jobs"]
    assert [row["dag_id"] for row in rows] == ["open_many_2", "open_many_1", "open_many_0"]


def test_a_log_is_read_in_parts_and_progress_is_separate(browse, trains):
    viewer = browse(VIEWER, trains("open_log"))
    first = viewer.get("api/log").json()
    assert "<b>waiting</b>" in first["lines"]
    assert first["points"][-1] == {"step": 4, "total": 4, "metrics": {"loss": 0.5}}
    second = viewer.get("api/log", cursor=first["cursor"]).json()
    assert (second["lines"], second["cursor"], second["complete"]) == ([], first["cursor"], True)


def test_a_log_can_be_searched_and_read_without_its_lines(browse, trains):
    viewer = browse(VIEWER, trains("open_log_search"))
    assert viewer.get("api/log", text="WAITING").json()["lines"] == ["<b>waiting</b>"]
    without = viewer.get("api/log", lines=0).json()
    assert (without["lines"], len(without["points"])) == ([], 2)


def test_a_log_that_was_reset_is_read_from_the_beginning(browse, trains):
    viewer = browse(VIEWER, trains("open_log_anew"))
    whole = viewer.get("api/log").json()
    assert viewer.get("api/log", cursor='{"node-0": 1000000}').json() == whole


def test_a_cursor_step_or_number_of_another_form_is_refused(browse, trains):
    viewer = browse(VIEWER, trains("open_form"))
    cursors = ["x", "[]", "1", '{"node-0": "x"}', '{"node-0": -1}', '{"node-0": [1]}', "{" * 9000]
    wrong = [
        *({"cursor": each} for each in cursors),
        *({"step": each} for each in ("../../etc/passwd", "node-0/..", "", "NODE")),
        *({"map_index": each} for each in (10**30, 2**63, "x" * 300, -2)),
    ]
    assert [each for each in wrong if viewer.get("api/log", **each).status_code != 422] == []


def test_a_log_is_downloaded_as_a_file_without_secrets(browse, trains):
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-of-the-file")
    task = trains("open_file", secret="hunter2-of-the-file")
    answer = browse(VIEWER, task).get("api/log/file")
    assert answer.headers["content-disposition"] == f'attachment; filename="{ref_of(task).name}-node-0.log"'
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("training begins ***\n")
    assert answer.text.endswith("<b>waiting</b>\n")
    assert browse(VIEWER, task).get("api/log/file", step="node-7").status_code == 409


def test_an_unknown_step_is_named(browse, trains):
    answer = browse(VIEWER, trains("open_no_step")).get("api/log", step="node-7")
    assert (answer.status_code, "node-0" in answer.json()["detail"]) == (409, True)


def test_a_secret_that_airflow_masks_is_not_shown(browse, trains):
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-of-the-log")
    lines = browse(VIEWER, trains("open_secret", secret="hunter2-of-the-log")).get("api/log").json()["lines"]
    assert "training begins ***" in lines


def test_the_manifest_is_shown_as_yaml(browse, trains):
    assert "runtime: python" in browse(VIEWER, trains("open_manifest")).get("api/manifest").json()["yaml"]


def test_a_task_without_a_job_has_no_page(browse, submitted):
    task = {**submitted("open_none"), "map_index": 3}
    assert browse(VIEWER, task).get("api/job").status_code == 404


@pytest.fixture
def elsewhere(browse, submitted):
    """A task with a job on a cluster without a connection."""
    task = submitted("open_elsewhere")
    push(task, "ref", {**ref_of(task).to_dict(), "backend": "kubernetes", "namespace": "team"})
    push(task, "status", "Complete")
    push(task, "metrics", {"accuracy": 0.5})
    return browse(EDITOR, task)


def test_without_a_connection_the_page_shows_the_xcoms_of_the_task(elsewhere):
    job = elsewhere.job()
    assert (job["status"], job["metrics"], job["namespace"]) == ("Complete", {"accuracy": 0.5}, "team")
    assert "trainjob_default" in job["unreachable"]


def test_without_a_connection_the_page_shows_the_progress_xcom(elsewhere):
    push(elsewhere.task, "status", "Created")
    push(elsewhere.task, "progress", {"step": 5, "total": 10, "metrics": {"loss": 1.5}, "percentage": 50})
    job = elsewhere.job()
    assert (job["status"], job["progress"]["percentage"]) == ("Running", 50)


def test_without_a_connection_the_page_shows_the_diagnosis_xcom(elsewhere):
    push(elsewhere.task, "status", "Failed")
    push(elsewhere.task, "diagnosis", {"category": "OutOfMemory", "reason": "it was killed", "retryable": False})
    assert elsewhere.job()["diagnosis"]["category"] == "OutOfMemory"


def test_without_a_connection_the_actions_apply_to_the_task(elsewhere, browse):
    assert elsewhere.job()["actions"] == ["rerun"]
    assert browse(VIEWER, elsewhere.task).job()["actions"] == []


def test_without_a_connection_the_api_server_refuses_changes_to_a_job(elsewhere):
    assert {action: elsewhere.post(f"api/{action}").status_code for action in _ACTIONS} == dict.fromkeys(_ACTIONS, 409)


def test_an_invalid_job_name_is_not_requested(browse, submitted):
    task = submitted("open_name")
    ref = ref_of(task).to_dict()
    for name in ("../../etc", "a/../b", "Name"):
        push(task, "ref", {**ref, "name": name})
        assert "is not a DNS label" in browse(VIEWER, task).job()["unreachable"]


@pytest.fixture
def connect_to(monkeypatch, tmp_path):
    """Make a cluster that of Airflow's connection."""

    def connect(cluster):
        extra = {"backend": "kubernetes", "config_file": str(cluster.kubeconfig(tmp_path / "config"))}
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", json.dumps({"conn_type": "trainjob", "extra": extra}))

    return connect


@pytest.fixture
def on_a_cluster(browse, run_dag, connect_to):
    """A task with a running job on a cluster with a connection."""
    with Cluster(delay=None) as cluster:
        cluster.lives.set("*", "complete")
        connect_to(cluster)
        trainer = CustomTrainerContainer("registry.local/train:1", env={"API_KEY": "s3cr3t"})
        task = task_of(run_dag(a_dag("open_cluster", trainer, backend="kubernetes")))
        yield browse(EDITOR, task), cluster


def test_a_search_on_a_cluster_is_read_with_the_connection_of_its_task(browse, run_dag, connect_to):
    with Cluster() as cluster:
        connect_to(cluster)
        user = browse(EDITOR, task_of(run_dag(a_search("tuned_cluster", backend="kubernetes"))))
        page = user.get("api/search").json()
        assert (page["backend"], page["unreachable"], page["best"]) == ("kubernetes", None, 1)
        names = [trial["job"] for trial in page["trials"]]
        assert all(cluster.get("TrainJob", name) for name in names)
        assert [trial["value"] for trial in page["trials"]] == [4.0, 1.0, 9.0]
        assert user.get("api/job", attempt=names[0]).json()["namespace"] == "default"
        cluster.delete("TrainJob", names[0])
        assert user.get("api/search").json()["trials"] == page["trials"]


def test_a_job_on_a_cluster_is_read_with_the_connection_of_its_task(on_a_cluster):
    editor, _ = on_a_cluster
    job = editor.job()
    assert (job["backend"], job["namespace"], job["actions"]) == ("kubernetes", "default", ["suspend", "delete"])
    assert "unreachable" not in job


def test_the_manifest_of_a_job_on_a_cluster_has_no_secret(on_a_cluster):
    shown = on_a_cluster[0].get("api/manifest").json()["yaml"]
    assert "kind: TrainJob" in shown
    assert "API_KEY" in shown
    assert "s3cr3t" not in shown


def test_a_job_on_a_cluster_is_deleted(on_a_cluster):
    editor, cluster = on_a_cluster
    name = editor.job()["name"]
    assert editor.post("api/delete").status_code == 204
    until(lambda: cluster.get("TrainJob", name) is None)


def test_a_local_job_in_another_state_folder_is_not_read(browse, trains, tmp_path):
    task = trains("open_folder")
    push(task, "ref", {**ref_of(task).to_dict(), "namespace": str(tmp_path)})
    assert "is not in the state folder of the API server" in browse(VIEWER, task).job()["unreachable"]


def test_the_page_is_in_the_menu_of_airflow(server, browse):
    from airflow.plugins_manager import get_plugin_info

    (plugin,) = [plugin for plugin in get_plugin_info() if plugin["name"] == "trainjob"]
    (view,) = plugin["external_views"]
    assert (view["href"], view["destination"]) == ("/trainjobs/", "nav")


def test_a_task_that_submits_a_job_has_a_tab_where_airflow_can_limit_it_to_such_tasks(monkeypatch):
    from airflow.api_fastapi.core_api.datamodels import plugins
    from pydantic import BaseModel, ConfigDict

    assert len(TrainJobPlugin().external_views) == 1 + ("applies_to" in plugins.ExternalViewResponse.model_fields)

    class AppliesTo(BaseModel):
        """The keys of https://github.com/apache/airflow/pull/69148."""

        model_config = ConfigDict(extra="forbid")
        dag_tags: list[str] = []
        dag_ids: list[str] = []
        task_ids: list[str] = []
        operators: list[str] = []

    class NewerView(plugins.ExternalViewResponse):
        applies_to: AppliesTo | None = None

    monkeypatch.setattr(plugins, "ExternalViewResponse", NewerView)
    menu, tab = (NewerView.model_validate(view) for view in TrainJobPlugin().external_views)
    assert (menu.destination, menu.applies_to, tab.destination) == ("nav", None, "task_instance")
    assert {TrainJobOperator.__name__, TrainJobDecoratedOperator.__name__} <= set(tab.applies_to.operators)
    shown = tab.href.format(DAG_ID="a", RUN_ID="b", TASK_ID="c", MAP_INDEX="-1")
    assert shown == "/trainjobs/job?dag_id=a&run_id=b&task_id=c&map_index=-1"


def test_a_task_links_to_the_page_of_its_job(browse, submitted, server):
    task = submitted("open_link")
    path = f"/api/v2/dags/open_link/dagRuns/{urllib.parse.quote(task['run_id'])}/taskInstances/train/links"
    links = server[0].get(path, headers=browse(VIEWER).headers).json()["extra_links"]
    assert links["TrainJob"].startswith("/trainjobs/job?dag_id=open_link&")
    assert links["Dashboard"] is None
