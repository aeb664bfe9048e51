"""Runtimes that somebody wrote into the state folder: one that is wrong is left out and hides no other."""

from __future__ import annotations

import copy

import pytest
import yaml
from local_jobs import returns_setting

CONTAINER = {"name": "node", "env": [{"name": "SETTING", "value": "mine"}]}
JOB = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}}
RUNTIME = {
    "metadata": {"name": "mine", "labels": {"trainer.kubeflow.org/framework": "python"}},
    "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [JOB]}}},
}


def change(path, value):
    """The runtime, with another value at a path."""
    changed = copy.deepcopy(RUNTIME)
    *way, last = path
    place = changed
    for step in way:
        place = place[step]
    place[last] = value
    return changed


def write(home, runtime):
    (home / "runtimes").mkdir(parents=True)
    (home / "runtimes" / "mine.yaml").write_text(yaml.safe_dump(runtime))


def test_a_runtime_of_ones_own_sets_the_environment_of_its_jobs(client, ask, home):
    write(home, RUNTIME)
    outcome = client.wait(client.submit(ask(returns_setting, {"name": "SETTING"}, runtime="mine")))
    assert outcome.result == "mine"


JOBS = ("spec", "template", "spec", "replicatedJobs")
ENV = (*JOBS, 0, "template", "spec", "template", "spec", "containers", 0, "env")


@pytest.mark.parametrize(
    "wrong",
    [
        change(JOBS, []),
        change((*JOBS, 0, "template", "spec", "template", "spec", "containers"), []),
        change(("spec", "mlPolicy", "numNodes"), 0),
        change(ENV, [{"name": "A=B", "value": "1"}]),
        change(ENV, [{"name": "A", "value": "\0"}]),
    ],
    ids=["no job", "no container", "no node", "a name no variable can have", "a value no variable can have"],
)
def test_a_runtime_that_is_wrong_is_left_out(client, home, wrong, caplog):
    write(home, wrong)
    assert sorted(runtime.name for runtime in client.list_runtimes()) == ["python", "torch-distributed"]
    assert "mine.yaml is left out" in caplog.text
