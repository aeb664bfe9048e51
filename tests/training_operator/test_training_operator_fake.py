"""The Training Operator of the fake cluster: pods, processes and conditions of PyTorchJobs."""

from __future__ import annotations

import json

import pytest
from fake_cluster import Cluster
from fake_cluster.raw_client import RawClient

FOREVER = "import time; print('it runs', flush=True); time.sleep(3600)"
PRINT_ENV = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.isupper()}))"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(backoff=0.01) as fake:
        yield fake


def job(name, code, workers=0, restart="Never", master=True, **spec):
    def replica(count):
        pod = {"containers": [{"name": "pytorch", "image": "train:1", "command": ["python3", "-c", code]}]}
        return {"replicas": count, "restartPolicy": restart, "template": {"spec": pod}}

    replicas = {**({"Master": replica(1)} if master else {}), **({"Worker": replica(workers)} if workers else {})}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": replicas, **spec},
    }


def get_condition(cluster, name, kind):
    conditions = ((cluster.get("PyTorchJob", name) or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)


def wait_for_condition(cluster, name, kind):
    return cluster.until(lambda: get_condition(cluster, name, kind))


def pods(cluster, name):
    labelled = [(pod["metadata"]["labels"] or {}, pod) for pod in cluster.objects("pods")]
    return {pod["metadata"]["name"]: pod for labels, pod in labelled if labels.get(JOB_NAME) == name}


JOB_NAME = "training.kubeflow.org/job-name"


def read_env(cluster, pod):
    with RawClient(cluster.url) as client:
        data = client.send("GET", f"/api/v1/namespaces/default/pods/{pod}/log?container=pytorch").data
    return json.loads(data)


def test_a_job_succeeds_with_its_master(cluster):
    cluster.add(job("good", "print('trained')"))
    succeeded = wait_for_condition(cluster, "good", "Succeeded")
    assert (succeeded["reason"], succeeded["message"]) == (
        "PyTorchJobSucceeded",
        "PyTorchJob good is successfully completed.",
    )
    conditions = {each["type"]: each["status"] for each in cluster.get("PyTorchJob", "good")["status"]["conditions"]}
    assert conditions == {"Created": "True", "Running": "False", "Succeeded": "True"}


def test_every_pod_has_its_rank_and_the_address_of_the_master(cluster):
    cluster.add(job("ranks", PRINT_ENV, workers=1, nprocPerNode="2"))
    cluster.until(lambda: [pod["status"]["phase"] for pod in pods(cluster, "ranks").values()] == ["Succeeded"] * 2)
    master, worker = (read_env(cluster, f"ranks-{kind}-0") for kind in ("master", "worker"))
    names = (
        "RANK",
        "PET_NODE_RANK",
        "WORLD_SIZE",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "MASTER_ADDR",
        "PYTHONUNBUFFERED",
    )
    assert [master[name] for name in names] == ["0", "0", "4", "2", "2", "127.0.0.1", "1"]
    assert [worker[name] for name in names] == ["1", "1", "4", "2", "2", "127.0.0.1", "1"]
    assert master["MASTER_PORT"] == worker["PET_MASTER_PORT"] != "23456"


def test_the_rendezvous_of_an_elastic_job_is_the_first_worker(cluster):
    policy = {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvConf": [{"key": "timeout", "value": "9"}]}
    cluster.add(job("elastic", PRINT_ENV, workers=1, master=False, elasticPolicy=policy))
    wait_for_condition(cluster, "elastic", "Succeeded")
    env = read_env(cluster, "elastic-worker-0")
    names = ("PET_NNODES", "PET_MAX_RESTARTS", "PET_RDZV_BACKEND", "PET_RDZV_CONF")
    assert [env[name] for name in names] == ["1:3", "5", "c10d", "timeout=9"]
    assert "RANK" not in env


def test_a_failed_worker_fails_the_job_and_running_pods_are_deleted(cluster):
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(3600)"
    cluster.add(job("bad", code, workers=1, runPolicy={"cleanPodPolicy": "Running"}))
    assert (
        wait_for_condition(cluster, "bad", "Failed")["message"]
        == "PyTorchJob bad is failed because 1 Worker replica(s) failed."
    )
    cluster.until(lambda: list(pods(cluster, "bad")) == ["bad-worker-0"])


def test_a_killed_pod_is_restarted_with_restart_policy_exit_code(cluster, tmp_path):
    seen = str(tmp_path / "seen")
    code = f"import pathlib, sys; p = pathlib.Path({seen!r}); x = p.exists(); p.touch(); sys.exit(0 if x else 143)"
    cluster.add(job("again", code, restart="ExitCode"))
    wait_for_condition(cluster, "again", "Succeeded")
    reasons = [event["reason"] for event in cluster.objects("events") if event["involvedObject"]["name"] == "again"]
    assert "PyTorchJobRestarting" in reasons


def test_restarts_beyond_the_backoff_limit_fail_the_job(cluster):
    cluster.add(job("loop", "raise SystemExit(1)", restart="OnFailure", runPolicy={"backoffLimit": 2}))
    assert "reached the specified backoff limit" in wait_for_condition(cluster, "loop", "Failed")["message"]


def test_a_job_that_exceeds_its_deadline_fails(cluster):
    cluster.add(job("late", FOREVER, runPolicy={"activeDeadlineSeconds": 1, "cleanPodPolicy": "All"}))
    assert "longer than specified deadline" in wait_for_condition(cluster, "late", "Failed")["message"]
    cluster.until(lambda: not pods(cluster, "late"))


def test_a_suspended_job_has_no_pods_until_it_is_resumed(cluster):
    cluster.add(job("rests", FOREVER))
    wait_for_condition(cluster, "rests", "Running")
    cluster.update("PyTorchJob", "rests", lambda raw: raw["spec"].update(runPolicy={"suspend": True}))
    wait_for_condition(cluster, "rests", "Suspended")
    cluster.until(lambda: not pods(cluster, "rests"))
    assert get_condition(cluster, "rests", "Running") is None
    cluster.update("PyTorchJob", "rests", lambda raw: raw["spec"].update(runPolicy={"suspend": False}))
    wait_for_condition(cluster, "rests", "Running")
    assert get_condition(cluster, "rests", "Suspended") is None


def test_a_job_is_deleted_after_its_ttl(cluster):
    cluster.add(job("brief", "pass", runPolicy={"ttlSecondsAfterFinished": 1}))
    cluster.until(lambda: cluster.get("PyTorchJob", "brief") is None)
    cluster.until(lambda: not pods(cluster, "brief"))


@pytest.mark.parametrize(
    ("invalid_job", "message"),
    [
        (job("1st", "pass"), "metadata.name: Invalid value"),
        (job("few", "pass", elasticPolicy={}), "pytorchReplicaSpecs[Worker]: Required value"),
        (job("who", "pass", runPolicy={"managedBy": "me"}), "spec.runPolicy.managedBy: Unsupported value"),
    ],
    ids=["a name", "an elastic job without workers", "another manager"],
)
def test_the_webhook_rejects_an_invalid_job(cluster, invalid_job, message):
    with RawClient(cluster.url) as client:
        status, answer = client.ask("POST", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", invalid_job)
    assert status == 403
    assert message in answer["message"]
