"""`trainjob reap` deletes the TrainJobs of KFP runs that were deleted or terminated."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from fake_cluster import Cluster

from trainer_core import CustomTrainerContainer, DeleteAfter, KubernetesBackendConfig, Labels, Name, TrainerClient
from trainer_core.model.jobs import KFP_ON_KILL_LABEL, KFP_RUN_LABEL

NAMESPACE = "training"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=[NAMESPACE, "kubeflow"]) as cluster:
        for run, spec in (("active", {}), ("terminated", {"activeDeadlineSeconds": 0})):
            labels = {"pipeline/runid": run}
            metadata = {"name": run, "namespace": "kubeflow", "labels": labels}
            cluster.add({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec})
        yield cluster


@pytest.fixture
def client(cluster):
    return TrainerClient(KubernetesBackendConfig(namespace=NAMESPACE, client_configuration=cluster.configuration()))


@pytest.fixture
def submit(cluster, client):
    """Submit a job of a run. It runs until it is deleted, or with `completes` it is Complete on return."""

    def submit_job(name, run=None, on_kill=None, completes=False, delete_after=None):
        cluster.lives.set(name, "complete" if completes else "runs")
        labels = {key: value for key, value in {KFP_RUN_LABEL: run, KFP_ON_KILL_LABEL: on_kill}.items() if value}
        options = [Name(name), *([Labels(labels)] if labels else [])]
        options += [DeleteAfter(delete_after)] if delete_after else []
        trainer = CustomTrainerContainer(image="registry.example/train:1.0")
        client.train(runtime="torch-distributed", trainer=trainer, options=options)
        client.wait(name, timeout=300) if completes else None

    return submit_job


@pytest.fixture
def jobs(client, submit):
    """Submit jobs of several runs; return a function that lists the names of the existing jobs."""
    submit("a-deleted", "deleted", "cancel")
    submit("b-terminated", "terminated", "cancel")
    submit("c-ended", "terminated", "cancel", completes=True)
    submit("d-active", "active", "cancel")
    submit("e-without-run")
    yield lambda: sorted(job.name for job in client.list_jobs())
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.fixture
def reap(cluster, trainjob, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return trainjob("--backend", "kubernetes", "--namespace", NAMESPACE, "reap", *arguments)

    return run


def test_active_jobs_of_deleted_and_terminated_runs_are_deleted(reap, jobs):
    done = reap("--runs-in", "kubeflow")

    assert (done.returncode, sorted(done.stdout.split())) == (0, ["a-deleted", "b-terminated"])
    assert jobs() == ["c-ended", "d-active", "e-without-run"]


def test_a_job_that_no_step_waits_for_is_kept_when_its_run_has_expired(reap, jobs, submit):
    submit("f-submitted-only", "deleted")

    reap("--runs-in", "kubeflow")

    assert "f-submitted-only" in jobs()


def test_an_ended_job_with_delete_after_is_kept_when_its_run_has_expired(reap, jobs, submit):
    submit("f-kept", "deleted", "cancel", completes=True, delete_after=604_800)
    submit("g-not-kept", "deleted", "cancel", completes=True)

    reap("--runs-in", "kubeflow")

    assert jobs()[-1] == "f-kept"


def test_a_job_with_on_kill_keep_is_kept_when_its_run_is_terminated(reap, jobs, submit):
    submit("f-kept", "terminated", "keep")
    submit("g-between-two-steps", "terminated")

    reap("--runs-in", "kubeflow")

    assert jobs()[-1] == "f-kept"


def test_jobs_of_runs_other_than_alive_are_deleted(reap, jobs):
    done = reap("--alive", "active", "--alive", "deleted")

    assert sorted(done.stdout.split()) == ["b-terminated", "c-ended"]


def test_without_options_no_job_of_a_run_is_deleted(reap, jobs):
    assert reap().stdout == ""
    assert len(jobs()) == 5


def test_only_the_workflows_of_the_jobs_runs_are_read_and_the_command_says_what_it_looks_at(
    reap, jobs, cluster, submit
):
    for number in range(25):
        submit(f"f-{number}", f"another-{number}", "keep")
    before = len(cluster.requests)

    done = reap("--runs-in", "kubeflow")

    reads = [request.query for request in cluster.requests[before:] if request.path.endswith("/workflows")]
    assert [len(query["labelSelector"].partition("(")[2].split(",")) for query in reads] == [20, 8]
    assert "looking at 29 TrainJobs of 28 KFP runs" in done.stderr
    assert sorted(done.stdout.split()) == ["a-deleted", "b-terminated"]


def test_a_namespace_without_workflows_is_rejected(reap, jobs):
    done = reap("--runs-in", NAMESPACE)

    assert done.returncode == 2
    assert "namespace 'training' has no Workflow of a pipeline run" in done.stderr
    assert len(jobs()) == 5


def test_local_jobs_of_missing_runs_are_deleted(trainjob):
    definition = {"name": "job", "runtime": "python", "trainer": {"func": "train:train", "func_args": {"x": 3}}}
    (trainjob.folder / "job.yaml").write_text(yaml.safe_dump({**definition, "labels": {KFP_RUN_LABEL: "deleted"}}))
    trainjob("submit", "--file", "job.yaml")

    done = trainjob("reap", "--alive", "active")

    assert (done.stdout, trainjob.json("list")) == ("job\n", [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--runs-in", "kubeflow"], "the local backend has no Workflows; use --alive"),
        (["--runs-in", "kubeflow", "--alive", "x"], "use one of them"),
    ],
)
def test_runs_in_and_alive_are_rejected_where_they_do_not_apply(trainjob, arguments, reason):
    done = trainjob("reap", *arguments)

    assert (done.returncode, reason in done.stderr) == (2, True)
