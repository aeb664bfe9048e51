"""`trainjob submit --image`: the command of an image, or a function in it."""

from __future__ import annotations

import json

import pytest
from fake_cluster import Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["team"], controllers=False) as created:
        yield created


@pytest.fixture
def run_on_cluster(trainjob, cluster, tmp_path, monkeypatch):
    """Run the command with the kubernetes backend; return its output."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", "team")))

    def run(*arguments):
        done = trainjob("--backend", "kubernetes", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_an_image_without_a_function_runs_its_own_command(run_on_cluster, cluster):
    name = run_on_cluster("submit", "--image", "team/train:1.0", "--nodes", "2", "-e", "MODE=fast").strip()

    trainer = cluster.get("TrainJob", name, "team")["spec"]["trainer"]
    assert (trainer["image"], trainer["numNodes"], "command" in trainer) == ("team/train:1.0", 2, False)
    assert {"name": "MODE", "value": "fast"} in trainer["env"]


def test_a_function_runs_in_the_image(run_on_cluster):
    image = ("--image", "team/train:1.0")
    rendered = run_on_cluster("render", "train:train", "-a", "x=1", *image, "--runtime", "python", "-o", "json")

    trainer = json.loads(rendered)["spec"]["trainer"]
    assert trainer["image"] == "team/train:1.0"
    assert "train:train" not in trainer["command"]
    assert trainer["command"]
