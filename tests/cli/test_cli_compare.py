"""`trainjob list` with columns, and `trainjob compare`."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from trainer_core import CustomTrainer, TrainerClient
from trainer_core.frontend.job_table import build_row, read_details
from trainer_core.model.request import Owner


@pytest.fixture
def trained(trainjob):
    """Two complete jobs and a failed one."""
    for name, rate, fail in (("a", "0.5", "false"), ("b", "0.75", "false"), ("broken", "0.5", "true")):
        arguments = ["--arg", "x=1", "--arg", f"rate={rate}", "--arg", f"fail={fail}", "--name", name, "--wait"]
        trainjob("submit", "train:train", "--runtime", "python", *arguments)
    return trainjob


def test_a_list_has_the_columns_that_are_asked_for_sorted_by_one_of_them(trained):
    listed = trained("list", "--columns", "name,param.rate,metric.accuracy,status", "--sort", "-metric.accuracy")
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines == [
        ["NAME", "param.rate", "metric.accuracy", "STATUS"],
        ["b", "0.75", "0.75", "Complete"],
        ["a", "0.5", "0.5", "Complete"],
        ["broken", "0.5", "Failed"],
    ]
    assert trained.json("list", "-c", "name,metric.loss", "--sort", "name", "-n", "1") == [
        {"name": "a", "metric.loss": 0.25}
    ]
    assert trained.json("list", "--columns", "duration", "--limit", "1")[0]["duration"] >= 0


def test_a_list_is_limited_in_time_and_number(trained):
    assert trained.json("list", "--since", "1d", "--limit", "2", "--columns", "name") == [
        {"name": "broken"},
        {"name": "b"},
    ]
    assert trained.json("list", "--since", "2999-01-01") == []


def test_a_comparison_shows_what_differs_and_every_metric(trained):
    assert trained.json("compare", "a", "b")["rows"] | {"duration": None} == {
        "duration": None,
        "param.rate": ["0.5", "0.75"],
        "metric.accuracy": [0.5, 0.75],
        "metric.loss": [0.25, 0.25],
        "metric.x": [1.0, 1.0],
    }
    every = trained("compare", "a", "broken", "--all").stdout.splitlines()
    assert every[0].split() == ["a", "broken"]
    assert [line.split() for line in every if line.startswith(("status", "param.rate"))] == [
        ["status", "Complete", "Failed"],
        ["param.rate", "0.5", "0.5"],
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "--columns", "nme"], 2, "column 'nme' is unknown; known are name, status,"),
        (["list", "--sort", "-param."], 2, "column 'param.' is unknown"),
        (["list", "--status", "done"], 2, "--status 'done' is unknown; known are Complete, Created, Failed,"),
        (["list", "--since", "yesterday"], 2, "--since 'yesterday' is no time; write a duration such as 90m"),
        (["compare", "a"], 2, "one TrainJob cannot be compared; name another one beside 'a'"),
        (["compare", "--search", "tune"], 2, "search 'tune' has 0 trials here; two or more can be compared"),
        (["compare", "a", "b"], 3, "'a'"),
    ],
)
def test_what_cannot_be_listed_or_compared_is_said_in_one_line(trainjob, arguments, code, message):
    done = trainjob(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert message in done.stderr


def test_a_list_tells_what_ran_and_how_far_it_came(trained):
    columns = ["--columns", "name,function,step,param.rate", "--status", "failed"]
    assert trained.json("list", *columns) == [
        {"name": "broken", "function": "train", "step": "4 of 4", "param.rate": "0.5"}
    ]
    assert len(trained.json("list", "--status", "complete", "--status", "failed")) == 3


def test_a_job_is_silent_while_it_runs_and_a_cancelled_one_keeps_its_step_and_last_metrics(trainjob):
    (trainjob.folder / "slow.py").write_text(
        "def train(path: str):\n"
        "    import time\n"
        "    from pathlib import Path\n"
        "    from trainer_core import progress\n"
        "    progress(step=19, total=60, metrics={'loss': 0.5})\n"
        "    Path(path).touch()\n"
        "    time.sleep(600)\n"
    )
    reached = trainjob.folder / "reached"
    trainjob("submit", "slow:train", "-a", f"path={reached}", "--runtime", "python", "--name", "slow")
    while not reached.exists():
        time.sleep(0.02)
    details = read_details(TrainerClient(), "slow")
    silent = replace(details, progress=replace(details.progress, silent="22 of 30 min"))
    assert [build_row(each).get("silent") for each in (details, silent)] == [None, "22 of 30 min"]
    trainjob("cancel", "slow")
    assert trainjob.json("list", "-c", "step,metric.loss,status") == [
        {"step": "19 of 60", "metric.loss": 0.5, "status": "Failed"}
    ]
    assert "step: 19 of 60\n" in trainjob("get", "slow").stdout
    assert "silent" not in build_row(replace(read_details(TrainerClient(), "slow"), progress=silent.progress))


def test_a_comparison_names_the_files_that_differ(trainjob):
    project = trainjob.folder / "project"
    project.mkdir()
    (project / "fit.py").write_text("import rates\n\n\ndef fit():\n    return {'rate': rates.RATE}\n")
    for name, rate in (("first", 1), ("second", 2)):
        (project / "rates.py").write_text(f"RATE = {rate}\n")
        given = ["--env", f"ONLY_{name.upper()}=1", "-p", "pip"] if name == "second" else []
        trainjob("submit", "fit:fit", "--code", "project", "--runtime", "python", "--name", name, *given)
    rows = trainjob.json("compare", "first", "second")["rows"]
    assert {name for name in rows if name.startswith("file.")} == {"file.rates.py"}
    assert all(len(set(rows[name])) == 2 for name in ("code", "file.rates.py"))
    assert (rows["variables"], rows["packages"]) == ([None, "ONLY_SECOND"], [None, "pip"])


def test_get_shows_what_ran_and_the_attempts_of_its_owner(trainjob):
    client = TrainerClient()
    trainer = CustomTrainer("train:train", code=".", func_args={"x": 1, "fail": True})
    owner = Owner(key="churn/scheduled__2026-01-01/fit/-1", slug="fit")
    request = client.build_request(runtime="python", trainer=trainer, owner=owner)
    first = client.submit(request)
    client.wait(first)
    second = client.retry(first)
    client.wait(second)

    shown = trainjob("get", second.name).stdout
    for line in (
        "function: train",
        "dag: churn",
        "task: fit",
        "run: scheduled__2026-01-01",
        "param.x: 1",
        "step: 4 of 4",
    ):
        assert f"\n{line}\n" in shown
    assert f"\nattempts: {first.name} Failed, {second.name} Failed\n" in shown
    assert "process-" in shown
