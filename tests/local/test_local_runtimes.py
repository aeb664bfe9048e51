"""Runtimes in the state folder: an invalid one is skipped and does not hide the other runtimes."""

from __future__ import annotations

import copy
import os
import sys

import pytest
import yaml
from local_jobs import returns, returns_setting

from trainer_core import BackendUnavailableError

CONTAINER = {"name": "node", "env": [{"name": "SETTING", "value": "mine"}]}
JOB = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}}
RUNTIME = {
    "metadata": {"name": "mine", "labels": {"trainer.kubeflow.org/framework": "python"}},
    "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [JOB]}}},
}


def change(path, value):
    """Return the runtime with another value at a path."""
    changed = copy.deepcopy(RUNTIME)
    *parents, last = path
    target = changed
    for key in parents:
        target = target[key]
    target[last] = value
    return changed


def write(home, runtime):
    (home / "runtimes").mkdir(parents=True)
    (home / "runtimes" / "mine.yaml").write_text(yaml.safe_dump(runtime))


def test_the_environment_of_a_user_runtime_reaches_its_jobs(client, ask, home):
    write(home, RUNTIME)
    outcome = client.wait(client.submit(ask(returns_setting, {"name": "SETTING"}, runtime="mine")))
    assert outcome.result == "mine"


JOBS = ("spec", "template", "spec", "replicatedJobs")
ENV = (*JOBS, 0, "template", "spec", "template", "spec", "containers", 0, "env")


@pytest.mark.parametrize(
    "invalid",
    [
        change(JOBS, []),
        change((*JOBS, 0, "template", "spec", "template", "spec", "containers"), []),
        change(("spec", "mlPolicy", "numNodes"), 0),
        change(ENV, [{"name": "A=B", "value": "1"}]),
        change(ENV, [{"name": "A", "value": "\0"}]),
    ],
    ids=["no job", "no container", "no node", "invalid variable name", "invalid variable value"],
)
def test_an_invalid_runtime_is_skipped_with_a_warning(client, home, invalid, caplog):
    write(home, invalid)
    assert sorted(runtime.name for runtime in client.list_runtimes()) == ["python", "torch-distributed", "trl-llm"]
    assert "mine.yaml is skipped" in caplog.text


def make_pipe(path):
    os.mkfifo(path)


def link_to_a_device(path):
    path.symlink_to("/dev/zero")


def write_deep_yaml(path):
    path.write_text("x: " + "[" * 3000)


def write_bytes_that_are_no_text(path):
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("make", [make_pipe, link_to_a_device, write_deep_yaml, write_bytes_that_are_no_text])
def test_a_file_that_cannot_be_read_hides_no_other_runtime(client, home, make, caplog):
    write(home, RUNTIME)
    make(home / "runtimes" / "bad.yaml")
    assert sorted(runtime.name for runtime in client.list_runtimes()) == [
        "mine",
        "python",
        "torch-distributed",
        "trl-llm",
    ]
    assert "bad.yaml is skipped" in caplog.text


def test_a_missing_torch_is_named_with_its_command_and_no_retry_can_help(client, ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendUnavailableError, match=r"package torch.*pip install -e '\.\[torch\]'") as refused:
        client.submit(ask(returns, runtime="torch-distributed"))
    assert not refused.value.transient
    assert client.list_jobs() == []
