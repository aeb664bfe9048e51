"""The components on Run:ai: what differs from any other backend is the configuration of the step."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from fake_cluster import Cluster
from kfp_driver import DrivenTask

from trainer_core import CustomTrainer, RunaiSpec
from trainer_core.client import backend_for
from trainer_core.definition import request_builder

NAMESPACE = "runai-team-a"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=[NAMESPACE, "runai"]) as cluster:
        yield cluster


@pytest.fixture
def task(cluster, tmp_path):
    """Make a task of a component that runs on Run:ai."""
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "project": "team-a"}

    def make(component, name, **inputs):
        places = {} if component == "wait" else {"backend": "runai"}
        return DrivenTask(component, tmp_path / "run" / name, {"backend_config": config, **places, **inputs}, {})

    return make


def request_for(backend, *options):
    trainer = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 2, "learning_rate": 0.1})
    return request_builder.build_request_data(
        backend=backend_for(backend), runtime="python", trainer=trainer, options=options
    )


def test_a_request_for_any_backend_is_run_and_waited_for(task, cluster):
    training = task("submit", "train", request=request_for("local"))
    started = training.run()
    assert started.returncode == 0, started.stderr

    waiting = task("wait", "wait", job=training.output("job"), metric_name="accuracy")
    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    assert waiting.output("result")["accuracy"] == 0.9
    assert cluster.get("TrainingWorkload", training.output("job")["name"], NAMESPACE)["status"]["phase"] == "Completed"


def test_fields_of_the_workload_travel_with_the_request(task, cluster):
    training = task("train", "direct", request=request_for("runai", RunaiSpec(gpu=0.5)))

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert cluster.get("TrainingWorkload", training.output("job")["name"], NAMESPACE)["spec"]["gpu"] == {"value": "0.5"}
