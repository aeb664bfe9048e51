"""How many requests each way of using a TrainJob sends to the API server: the table in docs/guides/kubernetes.md."""

from __future__ import annotations

from pathlib import Path

import kfp_definitions as definitions
import pytest
from fake_cluster import Cluster
from kfp_backend import WORKFLOW_DEFINITION
from kfp_driver import DrivenTask
from trainjob_command import Command

from trainer_core import CustomTrainer, KubernetesBackendConfig, TrainerClient
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.model.request import TrainJobRequest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-1", "uid": "w-1"}
OWNER = {"key": "a task of a run", "slug": "train"}


class Scene:
    """A cluster with a job `job`, which trains until `marker` exists."""

    def __init__(self, cluster, folder, command):
        self.cluster, self.folder, self.command = cluster, folder, command
        self.kubeconfig = cluster.kubeconfig(folder / "kubeconfig")
        self.marker = folder / "finish"
        trainer = CustomTrainer(func=definitions.train_until, func_args={"marker": str(self.marker)})
        self.request = request_builder.build_request_data(
            backend=backend_for("kubernetes"), runtime="python", trainer=trainer
        )

    def client(self):
        config = KubernetesBackendConfig(namespace="default", client_configuration=self.cluster.configuration())
        return TrainerClient(config)

    def submit(self, **fields):
        return self.client().submit(TrainJobRequest.parse({**self.request, **fields}))

    def is_watched(self):
        return self.cluster.watches == 2 and any(one["status"]["phase"] == "Running" for one in self.pods())

    def has_ended(self):
        return self.pods() and all(one["status"]["phase"] == "Succeeded" for one in self.pods())

    def is_streamed(self):
        return any(each.query.get("follow") for each in self.cluster.requests)

    def pods(self):
        return [pod for pod in self.cluster.objects("pods") if pod["metadata"]["name"] != "step-pod"]

    def run(self, *arguments, trains_until):
        """Run the command; end the training when a condition is met."""
        return self.end(self.command.start(*arguments), trains_until)

    def end(self, process, trains_until):
        self.cluster.until(trains_until)
        self.marker.touch()
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out

    def begin(self):
        self.submit(name="job")
        self.cluster.until(self.pods)
        self.cluster.forget_requests()


@pytest.fixture
def scene(tmp_path, capsys, monkeypatch):
    with Cluster() as cluster:
        made = Scene(cluster, tmp_path, Command(tmp_path, capsys))
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        monkeypatch.setenv("TRAINJOB_BACKEND", "kubernetes")
        yield made
        made.marker.touch()


def step(scene, monkeypatch):
    scene.cluster.add(WORKFLOW_DEFINITION)
    metadata = {"name": "step-pod", "namespace": "default", "labels": {"pipeline/runid": "id-of-the-run"}}
    owned = {**metadata, "ownerReferences": [{**WORKFLOW, "controller": True}]}
    spec = {"containers": [{"name": "main", "image": "x:1"}]}
    pod = scene.cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": owned, "spec": spec})
    monkeypatch.setenv("KFP_POD_NAME", "step-pod")
    monkeypatch.setenv("KFP_POD_UID", pod["metadata"]["uid"])
    config = {"config_file": str(scene.kubeconfig), "namespace": "default"}
    given = {"request": scene.request, "backend": "kubernetes", "backend_config": config}
    task = DrivenTask("train", scene.folder / "run", given, {})
    log = scene.end(task.start(), scene.is_streamed)
    assert "[node-0] training has begun\n" in log


def submit(scene, _):
    scene.submit(name="job")


def submit_with_an_owner(scene, _):
    scene.submit(owner=OWNER)


def wait_in_python(scene, _):
    scene.begin()
    scene.marker.touch()
    assert scene.client().wait("job").succeeded


def wait(scene, _):
    scene.begin()
    assert "Complete" in scene.run("wait", "job", trains_until=scene.is_streamed)


def logs(scene, _):
    scene.begin()
    assert scene.run("logs", "--follow", "job", trains_until=scene.is_streamed) == "training has begun\n"


def get(scene, _):
    scene.begin()
    scene.marker.touch()
    scene.cluster.until(scene.has_ended)
    assert "node-0" in scene.command("get", "job").stdout


@pytest.mark.parametrize(
    ("use", "row", "limit"),
    [
        # One stream of the log of the node that it prints is among them.
        (step, "a KFP step that submits and waits", 21),
        (submit, "`submit`", 7),
        (submit_with_an_owner, "`submit`", 7),
        (wait_in_python, "`client.wait`", 8),
        (wait, "`trainjob wait`", 8),
        (logs, "`trainjob logs --follow`", 8),
        (get, "`trainjob get`", 3),
    ],
)
def test_a_use_sends_at_most_as_many_requests_as_the_guide_says(scene, monkeypatch, use, row, limit):
    use(scene, monkeypatch)

    sent = [f"{each.verb} {each.path}" for each in scene.cluster.requests]
    assert len(sent) <= limit, "\n".join(sent)
    assert f"| {row} | {limit} |" in GUIDE.read_text()
