"""A pipeline's step on the Training Operator: its configuration names it, and nothing else changes."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from fake_cluster import Cluster
from kfp_driver import DrivenTask

from trainer_core import CustomTrainer
from trainer_core.client import backend_for
from trainer_core.definition import request_builder


@pytest.fixture
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("backend", ["kubernetes", "training-operator"])
def test_the_same_step_trains_on_either_controller(cluster, tmp_path, backend):
    trainer = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 2, "learning_rate": 0.1})
    request = request_builder.build_request_data(backend=backend_for(backend), runtime="python", trainer=trainer)
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "namespace": "default"}
    given = {"request": request, "backend": backend, "backend_config": config}
    training = DrivenTask("train", tmp_path / "run", given, {})

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert (training.output("result")["accuracy"], training.output("job")["backend"]) == (0.9, backend)
