"""The double plays the Training Operator: PyTorchJobs become pods, pods processes, and conditions tell of them."""

from __future__ import annotations

import json

import pytest
from fake_cluster import Cluster
from fake_cluster.asking import Asker

FOREVER = "import time; print('it runs', flush=True); time.sleep(3600)"
ENVIRONMENT = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.isupper()}))"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(backoff=0.01) as made:
        yield made


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


def condition(cluster, name, kind):
    found = ((cluster.get("PyTorchJob", name) or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def reached(cluster, name, kind):
    return cluster.until(lambda: condition(cluster, name, kind))


def pods(cluster, name):
    labelled = [(pod["metadata"]["labels"] or {}, pod) for pod in cluster.objects("pods")]
    return {pod["metadata"]["name"]: pod for labels, pod in labelled if labels.get(JOB_NAME) == name}


JOB_NAME = "training.kubeflow.org/job-name"


def environment(cluster, pod):
    with Asker(cluster.url) as client:
        data = client.send("GET", f"/api/v1/namespaces/default/pods/{pod}/log?container=pytorch").data
    return json.loads(data)


def test_a_job_has_succeeded_with_its_master(cluster):
    cluster.add(job("good", "print('trained')"))
    said = reached(cluster, "good", "Succeeded")
    assert (said["reason"], said["message"]) == ("PyTorchJobSucceeded", "PyTorchJob good is successfully completed.")
    conditions = {one["type"]: one["status"] for one in cluster.get("PyTorchJob", "good")["status"]["conditions"]}
    assert conditions == {"Created": "True", "Running": "False", "Succeeded": "True"}


def test_every_pod_is_told_its_rank_and_where_the_master_is(cluster):
    cluster.add(job("ranks", ENVIRONMENT, workers=1, nprocPerNode="2"))
    cluster.until(lambda: [pod["status"]["phase"] for pod in pods(cluster, "ranks").values()] == ["Succeeded"] * 2)
    master, worker = (environment(cluster, f"ranks-{kind}-0") for kind in ("master", "worker"))
    told = (
        "RANK",
        "PET_NODE_RANK",
        "WORLD_SIZE",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "MASTER_ADDR",
        "PYTHONUNBUFFERED",
    )
    assert [master[name] for name in told] == ["0", "0", "4", "2", "2", "127.0.0.1", "1"]
    assert [worker[name] for name in told] == ["1", "1", "4", "2", "2", "127.0.0.1", "1"]
    assert master["MASTER_PORT"] == worker["PET_MASTER_PORT"] != "23456"


def test_the_nodes_of_an_elastic_job_meet_at_the_first_worker(cluster):
    policy = {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvConf": [{"key": "timeout", "value": "9"}]}
    cluster.add(job("elastic", ENVIRONMENT, workers=1, master=False, elasticPolicy=policy))
    reached(cluster, "elastic", "Succeeded")
    found = environment(cluster, "elastic-worker-0")
    told = ("PET_NNODES", "PET_MAX_RESTARTS", "PET_RDZV_BACKEND", "PET_RDZV_CONF")
    assert [found[name] for name in told] == ["1:3", "5", "c10d", "timeout=9"]
    assert "RANK" not in found


def test_a_worker_that_fails_fails_the_job_and_what_runs_is_ended(cluster):
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(3600)"
    cluster.add(job("bad", code, workers=1, runPolicy={"cleanPodPolicy": "Running"}))
    assert (
        reached(cluster, "bad", "Failed")["message"] == "PyTorchJob bad is failed because 1 Worker replica(s) failed."
    )
    cluster.until(lambda: list(pods(cluster, "bad")) == ["bad-worker-0"])


def test_a_pod_that_was_killed_is_replaced_where_exit_codes_decide(cluster, tmp_path):
    seen = str(tmp_path / "seen")
    code = f"import pathlib, sys; p = pathlib.Path({seen!r}); x = p.exists(); p.touch(); sys.exit(0 if x else 143)"
    cluster.add(job("again", code, restart="ExitCode"))
    reached(cluster, "again", "Succeeded")
    reasons = [event["reason"] for event in cluster.objects("events") if event["involvedObject"]["name"] == "again"]
    assert "PyTorchJobRestarting" in reasons


def test_restarts_past_the_limit_fail_the_job(cluster):
    cluster.add(job("loop", "raise SystemExit(1)", restart="OnFailure", runPolicy={"backoffLimit": 2}))
    assert "reached the specified backoff limit" in reached(cluster, "loop", "Failed")["message"]


def test_a_job_that_runs_for_too_long_fails(cluster):
    cluster.add(job("late", FOREVER, runPolicy={"activeDeadlineSeconds": 1, "cleanPodPolicy": "All"}))
    assert "longer than specified deadline" in reached(cluster, "late", "Failed")["message"]
    cluster.until(lambda: not pods(cluster, "late"))


def test_a_suspended_job_has_no_pods_until_it_is_resumed(cluster):
    cluster.add(job("rests", FOREVER))
    reached(cluster, "rests", "Running")
    cluster.update("PyTorchJob", "rests", lambda raw: raw["spec"].update(runPolicy={"suspend": True}))
    reached(cluster, "rests", "Suspended")
    cluster.until(lambda: not pods(cluster, "rests"))
    assert condition(cluster, "rests", "Running") is None
    cluster.update("PyTorchJob", "rests", lambda raw: raw["spec"].update(runPolicy={"suspend": False}))
    reached(cluster, "rests", "Running")
    assert condition(cluster, "rests", "Suspended") is None


def test_a_job_whose_time_to_live_is_over_is_gone(cluster):
    cluster.add(job("brief", "pass", runPolicy={"ttlSecondsAfterFinished": 1}))
    cluster.until(lambda: cluster.get("PyTorchJob", "brief") is None)
    cluster.until(lambda: not pods(cluster, "brief"))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (job("1st", "pass"), "metadata.name: Invalid value"),
        (job("few", "pass", elasticPolicy={}), "pytorchReplicaSpecs[Worker]: Required value"),
        (job("who", "pass", runPolicy={"managedBy": "me"}), "spec.runPolicy.managedBy: Unsupported value"),
    ],
    ids=["a name", "an elastic job without workers", "another manager"],
)
def test_the_webhook_refuses_in_its_own_words(cluster, wrong, complaint):
    with Asker(cluster.url) as client:
        status, answer = client.ask("POST", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", wrong)
    assert status == 403
    assert complaint in answer["message"]
