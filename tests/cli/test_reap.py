"""`trainjob reap`: TrainJobs whose KFP run is gone."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from fake_cluster import Cluster

from trainer_core import CustomTrainerContainer, KubernetesBackendConfig, Labels, Name, TrainerClient
from trainer_core.cluster.marks import RUN

NAMESPACE = "training"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=[NAMESPACE, "kubeflow"]) as cluster:
        for run, spec in (("goes-on", {}), ("was-terminated", {"activeDeadlineSeconds": 0})):
            labels = {"pipeline/runid": run}
            metadata = {"name": run, "namespace": "kubeflow", "labels": labels}
            cluster.add({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec})
        yield cluster


@pytest.fixture
def jobs(cluster):
    """Submit a job of each run, and return the names of those that are left."""
    config = KubernetesBackendConfig(namespace=NAMESPACE, client_configuration=cluster.configuration())
    client = TrainerClient(config)
    trainer = CustomTrainerContainer(image="registry.example/train:1.0")
    of_runs = {
        "a-deleted": "is-gone",
        "b-terminated": "was-terminated",
        "c-ended": "was-terminated",
        "d-lives": "goes-on",
    }
    for name, run in of_runs.items():
        cluster.lives.set(name, "complete" if name == "c-ended" else "runs")
        client.train(runtime="torch-distributed", trainer=trainer, options=[Name(name), Labels({RUN: run})])
    cluster.lives.set("e-named", "runs")
    client.train(runtime="torch-distributed", trainer=trainer, options=[Name("e-named")])
    client.wait("c-ended", timeout=60)
    yield lambda: sorted(job.name for job in client.list_jobs())
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.fixture
def reap(cluster, trainjob, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return trainjob("--backend", "kubernetes", "--namespace", NAMESPACE, "reap", *arguments)

    return run


def test_jobs_of_runs_that_are_deleted_or_terminated_are_deleted(reap, jobs):
    done = reap("--runs-in", "kubeflow")

    assert (done.returncode, sorted(done.stdout.split())) == (0, ["a-deleted", "b-terminated"])
    assert jobs() == ["c-ended", "d-lives", "e-named"]


def test_who_knows_the_runs_that_live_may_say_so(reap, jobs):
    done = reap("--alive", "goes-on", "--alive", "is-gone")

    assert sorted(done.stdout.split()) == ["b-terminated", "c-ended"]


def test_unless_it_is_asked_for_no_job_of_a_run_is_deleted(reap, jobs):
    assert reap().stdout == ""
    assert len(jobs()) == 5


def test_a_namespace_where_no_pipelines_run_is_refused(reap, jobs):
    done = reap("--runs-in", NAMESPACE)

    assert done.returncode == 2
    assert "namespace 'training' has no Workflow of a run" in done.stderr
    assert len(jobs()) == 5


def test_jobs_on_this_machine_are_left_over_too(trainjob):
    definition = {"name": "job", "runtime": "python", "trainer": {"func": "train:train", "func_args": {"x": 3}}}
    (trainjob.folder / "job.yaml").write_text(yaml.safe_dump({**definition, "labels": {RUN: "is-gone"}}))
    trainjob("submit", "--file", "job.yaml")

    done = trainjob("reap", "--alive", "goes-on")

    assert (done.stdout, trainjob.json("list")) == ("job\n", [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--runs-in", "kubeflow"], "the local backend has no Workflows; give --alive"),
        (["--runs-in", "kubeflow", "--alive", "x"], "give one of them"),
    ],
)
def test_runs_must_be_known_in_one_way(trainjob, arguments, reason):
    done = trainjob("reap", *arguments)

    assert (done.returncode, reason in done.stderr) == (2, True)
