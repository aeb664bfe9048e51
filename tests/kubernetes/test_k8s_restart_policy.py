"""RestartPolicy on a cluster: the process that waits creates the next TrainJob, within one budget by cause."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from k8s_scene import a_client, a_request, a_stage

from trainer_core import CustomTrainer, Name
from trainer_core.base.errors import WaitTimeoutError
from trainer_core.k8s import labels
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import Category, Diagnosis, JobFailedError
from trainer_core.model.request import Owner

TASK = Owner(key="dag/run/task", slug="train", generation="1")
NOW = "2026-11-24T10:00:00Z"
FREE = {"free": ["Preempted"], "delay": 0}


def ask(policy, name=None, **fields):
    owner = TASK if name is None else None
    return a_request(name, "torch-distributed", **{"restart_policy": policy, "owner": owner, **fields})


def count_jobs(cluster):
    return len(cluster.objects("TrainJob", "default"))


def test_a_preempted_job_leads_to_a_next_attempt_with_its_history_in_an_annotation():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        first = client.submit(ask({"max_restarts": 1, "delay": 0}))
        outcome = client.wait(first)
        annotations = cluster.get("TrainJob", outcome.job.name)["metadata"]["annotations"]
        shown = client.get_job_outcome(first)
    assert (count_jobs(cluster), outcome.job.name) == (2, f"{first.name}-1")
    assert (outcome.restarts.total, outcome.restarts.counted) == (1, 1)
    assert "the budget of RestartPolicy is used up (max_restarts=1)" in outcome.diagnosis.reason
    assert "restart 1 of 1 follows" in shown.diagnosis.reason
    stored = AttemptRestarts.parse_json(annotations[labels.RESTART_POLICY])
    assert [cause.category for cause in stored.earlier.causes] == [Category.PREEMPTED.value]


def test_the_next_attempt_has_the_files_of_the_project_which_are_in_the_arguments_of_the_first(tmp_path):
    (tmp_path / "model.py").write_text("from scale import half\n\ndef fit():\n    return half(4)\n")
    (tmp_path / "scale.py").write_text("def half(value):\n    return value / 2\n")
    with a_stage("preempted", backoff_limit=0) as (_, client):
        trainer = CustomTrainer("model:fit", code=str(tmp_path))
        first = client.train(trainer=trainer, options=[Name("nightly")])
        client.wait(first)
        second = client.retry(first)
        projects = [client.backend.get_code(client.get_job_ref(job)).project for job in (first, second)]
    assert projects[0].archive
    assert projects[1] == projects[0]


def test_a_wait_for_a_status_starts_the_training_again():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        ref = client.submit(ask({"delay": 0, "max_restarts": 1}, name="nightly"))
        client.wait(ref, restarts=False)
        cluster.lives.set("nightly-1", "complete")
        job = client.wait_for_job_status("nightly", polling_interval=1)
    assert (job.name, job.status, count_jobs(cluster)) == ("nightly-1", "Complete", 2)


def test_a_wait_for_a_status_raises_the_failure_once_the_budget_is_used_up():
    with a_stage("preempted", backoff_limit=0) as (_, client):
        client.submit(ask({"delay": 0, "max_restarts": 1}, name="nightly"))
        with pytest.raises(JobFailedError, match=r"'nightly-1' is Failed: .*the budget of RestartPolicy is used up"):
            client.wait_for_job_status("nightly", polling_interval=1)


def test_a_restart_after_the_timeout_is_left_to_the_next_wait():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        ref = client.submit(ask({"delay": "5m"}))
        client.wait(ref, restarts=False)
        with pytest.raises(WaitTimeoutError, match="is Failed and is started again in"):
            client.wait(ref, timeout=0)
        assert client.wait(ref, timeout=0, restarts=False).restarts.following.delay == 300
        assert count_jobs(cluster) == 1


STALLED = Diagnosis(category=Category.STALLED, reason="no progress for 30 min", retryable=True)


def test_the_step_of_an_attempt_that_a_waiter_ends_is_known_after_its_pods_are_deleted():
    with a_stage(controllers=False) as (cluster, client):
        ref = client.submit(ask(FREE, checkpoints={"uri": "s3://bucket"}))
        node = {"jobset.sigs.k8s.io/jobset-name": ref.name, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
        index = {"batch.kubernetes.io/job-completion-index": "0"}
        spec = {"containers": [{"name": "node", "image": "train:1"}]}
        record = json.dumps({"checkpoint": 40, "resumed_from": 30})
        ended = {"exitCode": 1, "reason": "Error", "message": record, "startedAt": NOW, "finishedAt": NOW}
        container = {"name": "node", "ready": False, "restartCount": 0, "image": "train:1", "imageID": "train@1"}
        status = {"phase": "Failed", "containerStatuses": [{**container, "state": {"terminated": ended}}]}
        metadata = {"name": "node-0-0", "labels": {**node, **index}}
        cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
        client.backend.cancel(ref, diagnosis=STALLED)
        cluster.delete("Pod", "node-0-0")
        outcome = a_client(cluster).observe(ref).outcome
    assert (outcome.checkpoint, outcome.resumed_from, outcome.restarts.following.step) == (40, 30, 40)


def test_the_step_of_an_attempt_without_pods_that_a_waiter_ends_is_unknown():
    with a_stage(controllers=False) as (cluster, client):
        ref = client.submit(ask({"no_progress": 1, "delay": 0}, checkpoints={"uri": "s3://bucket"}))
        client.backend.cancel(ref, diagnosis=STALLED)
        restarts = a_client(cluster).observe(ref).outcome.restarts
    assert (restarts.following.category, restarts.following.step) == ("Stalled", None)


@pytest.mark.parametrize("name", [None, "nightly"], ids=["an owner", "a name"])
def test_a_restart_waits_for_a_pod_that_the_failed_attempt_has_left(name, caplog):
    with a_stage(controllers=False) as (cluster, client):
        ref = client.submit(ask({"free": ["Infrastructure"], "delay": 0}, name))
        node = {"jobset.sigs.k8s.io/jobset-name": ref.name, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
        metadata = {"name": "still-saves", "labels": node}
        spec = {"containers": [{"name": "node", "image": "train:1"}]}
        cluster.add(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        )
        failed = {"type": "Failed", "status": "True", "reason": "JobsFailed", "message": "", "lastTransitionTime": NOW}
        cluster.update_status("TrainJob", ref.name, {"conditions": [failed]})
        outcome = client.wait(ref, restarts=False)
        client.backend.max_left_seconds = 0.1
        assert client.attempts(outcome.job).start_next(outcome).name == f"{ref.name}-1"
    assert "has not ended in 0 s, and the next attempt starts beside it; check still-saves" in caplog.text


def test_a_job_that_a_person_deletes_is_not_started_again():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        ref = client.submit(ask(FREE))
        outcome = client.wait(ref, restarts=False)
        client.delete_job(ref)
        assert client.attempts(outcome.job).start_next(outcome) is None
        assert count_jobs(cluster) == 0


def test_ten_waiting_processes_share_one_budget():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        ref = client.submit(ask({"max_restarts": 2, "delay": 0, "no_progress": 9}))
        clients = [a_client(cluster) for _ in range(9)]
        with ThreadPoolExecutor(10) as pool:
            outcomes = list(pool.map(lambda each: each.wait(ref), [client, *clients]))
        assert count_jobs(cluster) == 3
    assert {outcome.job.name for outcome in outcomes} == {f"{ref.name}-2"}
    assert {(outcome.restarts.total, outcome.restarts.counted) for outcome in outcomes} == {(2, 2)}


def test_a_restart_after_a_lack_of_memory_asks_for_more():
    trainer = {"kind": "container", "image": "custom:1", "resources_per_node": {"memory": "8Gi"}}
    fields = {"trainer": trainer, "more_memory": {"limit": "12Gi"}}
    with a_stage("oom", backoff_limit=100_000) as (cluster, client):
        outcome = client.wait(client.submit(ask({"delay": 0, "no_progress": 9}, **fields)))
        assert count_jobs(cluster) == 2
    assert (outcome.restarts.counted, outcome.memory.amount, outcome.diagnosis.retryable) == (1, "12Gi", False)


def test_each_mapped_task_has_its_own_budget():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        tasks = [Owner(key=f"dag/run/task/{index}", slug="train", generation="1") for index in range(2)]
        ended = [client.wait(client.submit(ask({"delay": 0, "max_restarts": 1}, owner=task))) for task in tasks]
        assert count_jobs(cluster) == 4
    assert [outcome.restarts.counted for outcome in ended] == [1, 1]


def test_a_job_that_is_not_waited_for_is_restarted_by_the_next_submit_of_its_owner_within_the_budget():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        request = ask({"max_restarts": 1, "delay": 0})
        refs = []
        for _ in range(4):
            refs.append(client.submit(request))
            client.wait(refs[-1], restarts=False)
        assert count_jobs(cluster) == 2
    assert [ref.name for ref in refs] == [refs[0].name, f"{refs[0].name}-1", f"{refs[0].name}-1", f"{refs[0].name}-1"]


WAIT = """
import sys
from trainer_core import KubernetesBackendConfig, TrainerClient
print(TrainerClient(KubernetesBackendConfig(config_file=sys.argv[1], namespace="default")).wait(sys.argv[2]).job.name)
"""


def test_killed_waiters_exceed_no_budget(tmp_path):
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        ref = client.submit(ask({"max_restarts": 3, "delay": 0, "no_progress": 9}))
        command = [sys.executable, "-c", WAIT, str(cluster.kubeconfig(tmp_path / "config")), ref.name]
        for attempts in (2, 3):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while count_jobs(cluster) < attempts and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        outcome = client.wait(ref)
        assert count_jobs(cluster) == 4
    assert (outcome.restarts.total, outcome.restarts.counted) == (3, 3)
