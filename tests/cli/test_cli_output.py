"""What the command prints: reasons of a wait, missing results, progress, tables; global options on both sides."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from rich.console import Console

from trainer_core.cli import main, progress
from trainer_core.cli.options import move_global_options
from trainer_core.cli.output import print_table
from trainer_core.lifecycle.wait_state import PendingFailureLog
from trainer_core.model.jobs import (
    CREATED,
    RUNNING,
    Category,
    Diagnosis,
    Observation,
    PendingFailure,
    Progress,
    TrainJobRef,
)

REF = TrainJobRef("local", "/home", "a-job", "uid")
PENDING = PendingFailure(Diagnosis(category=Category.SCHEDULING, reason="no node has [gpu]"), 300.0)
OBSERVATIONS = [Observation(CREATED), *[Observation(CREATED, pending_failure=PENDING)] * 3, Observation(RUNNING)]


class Waiting:
    """An attempt whose wait has these observations."""

    ref = REF

    def wait(self, on_observation):
        for each in OBSERVATIONS:
            on_observation(each)


def test_a_wait_prints_why_a_job_cannot_start_when_it_is_seen(capsys):
    progress.wait_with_progress(Waiting())
    assert capsys.readouterr().err.splitlines() == [
        "a-job Created",
        "a-job Created: Scheduling: no node has [gpu]",
        "a-job Running",
    ]


def test_a_pending_failure_is_written_once_while_it_lasts():
    lines = []
    log = PendingFailureLog("a-job", lines.append)
    for each in [*OBSERVATIONS, OBSERVATIONS[1]]:
        log.report(each)
    assert lines == ["TrainJob a-job is Created: Scheduling: no node has [gpu]"] * 2


def test_a_job_is_queued_in_the_log_once_and_in_the_wait_at_each_step_forward(capsys):
    queued = [Observation(CREATED, queued=f"queued: {ahead} ahead") for ahead in (2, 1)]
    lines = []
    log = PendingFailureLog("a-job", lines.append)
    for each in [*queued, Observation(RUNNING)]:
        log.report(each)
    assert lines == ["TrainJob a-job is queued: 2 ahead"]
    printer = progress._LinePrinter(Console(stderr=True), "a-job")
    for each in queued:
        printer.print_if_changed(each)
    assert capsys.readouterr().err.splitlines() == [f"a-job Created: queued: {ahead} ahead" for ahead in (2, 1)]


def test_a_wait_prints_the_reported_percentage_at_each_tenth(capsys):
    printer = progress._LinePrinter(Console(stderr=True), "a-job")
    for step in (1, 9, 12, 19, 20):
        printer.print_if_changed(Observation(RUNNING, progress=Progress(step, 100, {})))
    assert capsys.readouterr().err.splitlines() == [f"a-job Running {step}%" for step in (1, 12, 20)]


def test_a_wait_prints_for_how_long_a_training_is_silent(capsys):
    printer = progress._LinePrinter(Console(stderr=True), "a-job")
    for silent in (None, "8 of 30 min", "8 of 30 min", "9 of 30 min", None):
        printer.print_if_changed(Observation(RUNNING, progress=Progress(1, 100, {}, silent=silent)))
    lines = ["", " silent for 8 of 30 min", " silent for 9 of 30 min", ""]
    assert capsys.readouterr().err.splitlines() == [f"a-job Running 1%{each}" for each in lines]


def test_an_unknown_output_format_is_refused_in_our_words(capsys):
    assert main(["list", "--output", "xml"]) == 2
    assert capsys.readouterr().err == (
        "trainjob: Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json'.\n"
    )


KILLED = """
def killed():
    import os
    import signal

    from trainer_core import progress

    print("almost done", flush=True)
    progress(step=1, total=2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_failure_without_a_traceback_is_printed_with_the_end_of_its_log(trainjob):
    (trainjob.folder / "killed.py").write_text(KILLED)
    done = trainjob("submit", "killed:killed", "--runtime", "python", "--name", "killed", "--wait")
    assert done.returncode == 1
    *_, first, second, last = done.stderr.splitlines()
    assert [first, second] == ["almost done", "progress 50% (1/2)"]
    assert "it was killed by SIGKILL" in last


LARGE = "def large():\n    return 'x' * 5000\n"


def test_a_result_that_is_too_large_is_named(trainjob):
    (trainjob.folder / "large.py").write_text(LARGE)
    done = trainjob("submit", "large:large", "--runtime", "python", "--name", "large", "--wait")
    assert done.returncode == 0
    assert "more than 4096; set result_uri to write it to a file" in done.stderr
    assert "result: the result has " in trainjob("get", "large").stdout
    assert "more than 4096" in trainjob("wait", "large").stderr


def test_a_result_with_a_number_that_is_not_finite_is_printed_with_a_note(trainjob):
    (trainjob.folder / "diverged.py").write_text("def train():\n    return {'loss': float('nan'), 'steps': 3}\n")
    done = trainjob("submit", "diverged:train", "--runtime", "python", "--name", "diverged", "--wait")
    note = "null instead of a number that is not finite: result.loss"
    assert done.stdout == "diverged Complete {'loss': None, 'steps': 3}\n"
    assert done.stderr.splitlines()[-1] == f"trainjob: TrainJob diverged: {note}"
    assert f"result: {{'loss': None, 'steps': 3}}\nnote: {note}\n" in trainjob("get", "diverged").stdout


def test_logs_print_progress_as_text_and_the_line_itself_when_asked(trainjob):
    trainjob("submit", "train:train", "--arg", "x=1", "--runtime", "python", "--name", "job", "--wait")
    out = trainjob("logs", "job").stdout
    assert "progress 100% (4/4) loss=0.25" in out
    assert "[trainjob:progress]" not in out
    assert "[trainjob:progress]" in trainjob("logs", "job", "--raw").stdout


def test_get_prints_the_use_of_resources_and_logs_do_not_print_its_reports(trainjob):
    function = "trainer_core.testing.training_functions:wait_for_resource_report"
    interval = "TRAINJOB_RESOURCE_INTERVAL=0.2"
    done = trainjob("submit", function, "--env", interval, "--runtime", "python", "--name", "used", "--wait")
    assert done.returncode == 0
    assert "resources: peak memory " in trainjob("get", "used").stdout
    assert trainjob("logs", "used").stdout == trainjob("logs", "used", "-o", "json").stdout == ""


LONG = "UserCode in node-0: ValueError: " + "a shape that does not fit " * 4


@pytest.mark.parametrize("width", [60, 80, 120, None])
def test_only_the_last_column_of_a_table_is_folded(width, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: width is not None)
    monkeypatch.setenv("COLUMNS", str(width or 10))
    print_table(["NAME", "STATUS", "CREATED", "REASON"], [["train-0123456789", "Failed", "2026-11-24 02:33:10", LONG]])

    header, first, *rest = capsys.readouterr().out.splitlines()
    assert header == "NAME              STATUS  CREATED              REASON"
    assert first.startswith("train-0123456789  Failed  2026-11-24 02:33:10  UserCode in")
    reason = [first[len(header) - 6 :], *(line.strip() for line in rest)]
    assert " ".join(reason) == LONG.strip()
    # Narrower than 20 characters it is not folded: a terminal breaks such lines.
    assert all(len(line) <= max(width, len(header) - 6 + 20) for line in rest) if width else not rest


def test_each_column_of_a_comparison_is_folded(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(["", "good", "bad"], [["reason", LONG, LONG]], folded=2)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].count("UserCode in node-0") == 2


def test_a_table_is_not_padded_to_its_longest_reason(trainjob):
    trainjob(
        "submit", "train:train", "--arg", "x=1", "--arg", "fail=true", "--runtime", "python", "--name", "bad", "--wait"
    )
    trainjob("submit", "train:train", "--arg", "x=1", "--runtime", "python", "--name", "good", "--wait")
    lines = trainjob("list").stdout.splitlines()
    assert len(lines) >= 3
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        (["list", "--namespace", "x"], ["--namespace", "x", "list"]),
        (["list", "--context=a", "-o", "json"], ["--context=a", "list", "-o", "json"]),
        (["--backend", "local", "list"], ["--backend", "local", "list"]),
        (
            ["runtimes", "create", "torch", "a", "--namespace", "x"],
            ["runtimes", "create", "torch", "a", "--namespace", "x"],
        ),
        (["logs", "--", "--home"], ["logs", "--", "--home"]),
    ],
)
def test_global_options_may_follow_the_subcommand(given, moved):
    assert move_global_options(given) == moved


def test_the_kubeconfig_context_and_the_namespace_of_a_list(trainjob, tmp_path, monkeypatch):
    with Cluster(namespaces=["team", "other"], controllers=False) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", "team")))
        assert trainjob("list", "--backend", "kubernetes", "--namespace", "other").returncode == 0
        assert any("/namespaces/other/trainjobs" in request.path for request in cluster.requests)
        failed = trainjob("list", "--backend", "kubernetes", "--context", "absent")
        assert failed.returncode != 0
        assert "absent" in failed.stderr
    assert main(["list", "--context"]) == 2


def test_runtimes_without_permission_is_one_line(trainjob, tmp_path, monkeypatch, caplog):
    with Cluster(namespaces=["team"], controllers=False) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", "team")))
        for plural in ("clustertrainingruntimes", "trainingruntimes"):
            cluster.forbid("list", plural)
        done = trainjob("runtimes", "--backend", "kubernetes")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert [record for record in caplog.records if "are missing" in record.message] == []
