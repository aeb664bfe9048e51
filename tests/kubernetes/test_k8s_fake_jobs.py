"""The double plays Trainer, JobSet, Job and kubelet: TrainJobs become pods, and pods real processes."""

from __future__ import annotations

import json
import os

import pytest
from fake_cluster import Cluster, crds
from fake_cluster.raw_client import RawClient
from fake_cluster.runtimes import runtime
from fake_cluster.schema import Schemas

from trainer_core.k8s.resources import JOBSETS
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters, build_torch_runtime

FOREVER = "import time; print('it runs', flush=True); time.sleep(3600)"


@pytest.fixture
def cluster():
    with Cluster(backoff=0.01) as made:
        yield made


def job(name: str, code: str, runtime: str = "python", nodes: int = 1, trainer: dict | None = None, **spec) -> dict:
    container = {"command": ["python3", "-c"], "args": [code], "numNodes": nodes, **(trainer or {})}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": container, **spec},
    }


def condition(cluster, name: str, type_: str) -> dict | None:
    found = (cluster.get("TrainJob", name).get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == type_ and one["status"] == "True"), None)


def ended(cluster, name: str) -> dict:
    return cluster.until(lambda: condition(cluster, name, "Complete") or condition(cluster, name, "Failed"))


def pods(cluster, job: str) -> list[dict]:
    return [
        pod for pod in cluster.objects("pods") if pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == job
    ]


def running(cluster, job: str) -> list[dict]:
    return cluster.until(lambda: [pod for pod in pods(cluster, job) if pod["status"]["phase"] == "Running"])


def container(pod: dict) -> dict:
    return pod["status"]["containerStatuses"][0]


def log(cluster, pod: dict, query: str = "") -> list[str]:
    with RawClient(cluster.url) as client:
        data = client.send("GET", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/log{query}").data
    return data.decode().splitlines()


def has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_whose_process_ends_well_is_complete(cluster):
    cluster.add(job("good", "print('trained')"))
    assert ended(cluster, "good")["reason"] == "AllJobsCompleted"
    (pod,) = pods(cluster, "good")
    assert (pod["status"]["phase"], log(cluster, pod)) == ("Succeeded", ["trained"])
    assert cluster.get("TrainJob", "good")["status"]["jobsStatus"] == [
        {"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}
    ]


def test_pods_are_named_and_labelled_as_jobset_does(cluster):
    cluster.add(job("named", "pass", nodes=2))
    ended(cluster, "named")
    first, second = pods(cluster, "named")
    assert [pod["metadata"]["name"].rpartition("-")[0] for pod in (first, second)] == [
        "named-node-0-0",
        "named-node-0-1",
    ]
    labels = second["metadata"]["labels"]
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
    assert labels["batch.kubernetes.io/job-completion-index"] == "1"


def test_every_node_knows_its_place_and_its_rendezvous(cluster):
    code = "from os import environ as e; print({k: e[k] for k in e if 'PET_' in k}); print(e['JOB_COMPLETION_INDEX'])"
    cluster.add(job("torch", code, runtime="torch-distributed", nodes=2))
    ended(cluster, "torch")
    text = "\n".join(log(cluster, pods(cluster, "torch")[1]))
    assert "'PET_NNODES': '2', 'PET_NPROC_PER_NODE': '1', 'PET_NODE_RANK': '1', 'PET_MASTER_ADDR': '127.0.0.1'" in text
    assert text.endswith("\n1")


def test_the_jobset_is_as_its_definition_wants_it(cluster):
    patch = {
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "containers": [{"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        }
    }
    steps = [{"name": "node", "template": {"spec": {"template": patch}}}]
    patches = [{"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": steps}}}}]
    cluster.add(job("patched", "pass", runtime="torch-distributed", runtimePatches=patches, suspend=True))
    jobset = cluster.until(lambda: cluster.get(JOBSETS, "patched"))
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], spec["containers"][0]["volumeMounts"][0]["name"]) == ({"disk": "fast"}, "v")
    assert spec["containers"][0]["command"] == ["python3", "-c"]


def test_jobsets_of_all_stock_runtimes_fit_the_definition(cluster):
    from fake_cluster.writing import Intent

    schemas = Schemas(crds.definitions("2.3"))
    for name in cluster.load_stock_runtimes():
        cluster.add(job(f"of-{name}".replace(".", "-"), "pass", runtime=name, suspend=True))
    made = cluster.until(lambda: len(cluster.objects(JOBSETS)) == 10 and cluster.objects(JOBSETS))
    for jobset in made:
        schemas.check(Intent(JOBSETS, jobset, None, "Strict", None, "create", []))


def test_a_termination_message_is_kept(cluster):
    code = "import os; open(os.environ['TRAINJOB_TERMINATION_LOG'], 'w').write('x' * 5000)"
    cluster.add(job("told", code))
    ended(cluster, "told")
    assert container(pods(cluster, "told")[0])["state"]["terminated"]["message"] == "x" * 4096


def test_a_crashing_container_is_restarted_until_its_job_has_failed_and_its_pod_is_deleted():
    with Cluster(backoff=0.01, backoff_limit=2) as cluster:
        cluster.add(job("bad", "import sys; print('no'); sys.exit(3)"))
        assert ended(cluster, "bad")["reason"] == "FailedJobs"
        cluster.until(lambda: not pods(cluster, "bad"))
        reasons = {event["reason"] for event in cluster.objects("events")}
    assert {"BackoffLimitExceeded", "BackOff", "FailedJobs"} <= reasons


def test_a_failed_job_whose_jobset_is_deleted_runs_again_as_in_trainer_2_3():
    with Cluster(backoff=0.01, backoff_limit=1) as cluster:
        cluster.add(job("bad", "import sys; sys.exit(3)"))
        first = ended(cluster, "bad") and cluster.get(JOBSETS, "bad")
        cluster.delete(JOBSETS, "bad")
        cluster.until(lambda: cluster.get(JOBSETS, "bad"))
        assert ended(cluster, "bad")["reason"] == "FailedJobs"
        assert cluster.get(JOBSETS, "bad")["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_complete_job_stays_complete_when_its_jobset_has_outlived_its_time(cluster):
    made = runtime("brief", "plain")
    made["spec"]["template"]["spec"]["ttlSecondsAfterFinished"] = 0
    cluster.add(made)
    cluster.add(job("good", "pass", runtime="brief"))
    assert ended(cluster, "good")["type"] == "Complete"
    cluster.until(lambda: cluster.get(JOBSETS, "good") is None)
    cluster.until(lambda: not pods(cluster, "good"))
    assert condition(cluster, "good", "Complete") is not None


def test_a_failure_policy_starts_all_steps_again(cluster):
    made = runtime("again", "plain")
    made["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": 1}
    made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 0
    cluster.add(made)
    cluster.add(job("bad", "import sys; sys.exit(3)", runtime="again"))
    assert ended(cluster, "bad")["reason"] == "ReachedMaxRestarts"
    assert cluster.get(JOBSETS, "bad")["status"]["restarts"] == 1


def test_a_container_that_waits_for_its_restart_has_its_last_termination():
    with Cluster(backoff=30) as cluster:
        cluster.add(job("bad", "import sys; print('no'); sys.exit(3)"))
        pod = cluster.until(lambda: next((p for p in pods(cluster, "bad") if "CrashLoop" in json.dumps(p)), None))
        assert container(pod)["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=node")
        assert (container(pod)["lastState"]["terminated"]["exitCode"], container(pod)["restartCount"]) == (3, 1)
        assert log(cluster, pod, "?previous=true") == ["no"]


def test_a_killed_process_has_the_exit_code_of_its_signal():
    with Cluster(backoff=30) as cluster:
        cluster.add(job("killed", "import os; os.kill(os.getpid(), 9)"))
        pod = cluster.until(lambda: next((p for p in pods(cluster, "killed") if "CrashLoop" in json.dumps(p)), None))
    assert container(pod)["lastState"]["terminated"]["exitCode"] == 137


def test_a_program_that_is_not_there_cannot_be_started(cluster):
    cluster.add(job("absent", "", trainer={"command": ["no-such-program"]}))
    pod = cluster.until(lambda: next((p for p in pods(cluster, "absent") if "StartError" in json.dumps(p)), None))
    assert "no-such-program" in json.dumps(pod["status"])


def test_a_suspended_job_loses_its_pods_and_starts_from_scratch(cluster):
    cluster.add(job("long", FOREVER))
    (first,) = running(cluster, "long")
    cluster.update("TrainJob", "long", lambda raw: raw["spec"].update(suspend=True))
    cluster.until(lambda: not pods(cluster, "long"))
    assert cluster.until(lambda: condition(cluster, "long", "Suspended"))["reason"] == "Suspended"
    cluster.update("TrainJob", "long", lambda raw: raw["spec"].update(suspend=False))
    (second,) = running(cluster, "long")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert condition(cluster, "long", "Suspended") is None


def test_a_job_managed_by_multikueue_is_left_alone(cluster):
    cluster.add(job("far", "pass", managedBy="kueue.x-k8s.io/multikueue"))
    cluster.add(job("near", "pass"))
    ended(cluster, "near")
    assert cluster.get(JOBSETS, "far") is None


def test_a_deadline_ends_a_job(cluster):
    cluster.add(job("late", FOREVER, activeDeadlineSeconds=1))
    assert ended(cluster, "late")["reason"] == "DeadlineExceeded"
    cluster.until(lambda: not pods(cluster, "late"))


def test_deleting_a_job_ends_its_processes(cluster):
    cluster.add(job("gone", "import os; print(os.getpid(), flush=True);" + FOREVER))
    (pod,) = running(cluster, "gone")
    pid = int(cluster.until(lambda: log(cluster, pod))[0])
    cluster.delete("TrainJob", "gone")
    cluster.until(lambda: not pods(cluster, "gone") and not cluster.objects("jobs"))
    assert not has_process(pid)


def test_deleting_a_plain_job_in_the_foreground_ends_its_processes_first(cluster):
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "command": ["sleep", "600"]}]}
    metadata = {"name": "gone", "namespace": "default"}
    cluster.add({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}})
    cluster.until(lambda: [pod for pod in cluster.objects("pods") if pod["status"]["phase"] == "Running"])
    going = cluster.delete("Job", "gone", propagation="Foreground")
    assert going["metadata"]["deletionTimestamp"]
    cluster.until(lambda: cluster.get("Job", "gone") is None)
    assert cluster.objects("pods") == []


def test_trainer_creates_the_jobset_of_a_job_that_is_deleted_in_the_foreground_again(cluster):
    cluster.add(job("gone", FOREVER))
    running(cluster, "gone")
    first = cluster.get(JOBSETS, "gone")["metadata"]["uid"]
    cluster.delete("TrainJob", "gone", propagation="Foreground")
    cluster.until(lambda: (again := cluster.get(JOBSETS, "gone")) and again["metadata"]["uid"] != first)
    assert cluster.get("TrainJob", "gone")["metadata"]["deletionTimestamp"]


def test_what_ignores_sigterm_is_killed_after_its_grace():
    with Cluster(grace=0.05) as cluster:
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + FOREVER
        cluster.add(job("deaf", deaf))
        (pod,) = running(cluster, "deaf")
        cluster.until(lambda: log(cluster, pod))
        cluster.delete("TrainJob", "deaf")
        cluster.until(lambda: not pods(cluster, "deaf"))


def test_initializers_run_before_the_trainer_and_fill_what_it_mounts(cluster):
    cluster.add(runtime("steps", "plain", initializers=("dataset-initializer", "model-initializer")))
    code = "import os, pathlib; print(pathlib.Path(os.environ['TRAINJOB_DATASET_PATH'], 'source.txt').read_text())"
    cluster.add(job("data", code, runtime="steps", initializer={"dataset": {"storageUri": "hf://a/b"}}))
    assert ended(cluster, "data")["type"] == "Complete"
    names = [pod["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] for pod in pods(cluster, "data")]
    assert names == ["dataset-initializer", "model-initializer", "node"]
    assert log(cluster, pods(cluster, "data")[-1]) == ["hf://a/b"]


def test_variables_are_expanded_and_come_from_secrets(cluster):
    cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "data": {"token": "czNjcmV0"}})
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "BOTH", "value": "$(POD)/$(TOKEN)"},
    ]
    code = "import os, sys; print(os.environ['BOTH'], '$(POD) $(UNDEFINED) $$(POD)')"
    cluster.add(job("env", code, trainer={"env": env}))
    ended(cluster, "env")
    assert log(cluster, pods(cluster, "env")[0]) == ["default/s3cret default $(UNDEFINED) $(POD)"]


def test_a_pod_waits_for_a_secret_that_is_not_there_yet(cluster):
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]
    cluster.add(job("waits", "pass", trainer={"env": env}))
    pod = cluster.until(lambda: next((p for p in pods(cluster, "waits") if "containerStatuses" in p["status"]), None))
    pod = cluster.until(lambda: next((p for p in pods(cluster, "waits") if "hf" in json.dumps(p["status"])), None))
    assert container(pod)["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'secret "hf" not found',
    }
    cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "data": {"token": "eA=="}})
    assert ended(cluster, "waits")["type"] == "Complete"


def test_names_that_get_too_long_are_refused_when_children_are_made(cluster):
    cluster.add(job("a" * 60, "pass"))
    event = cluster.until(lambda: cluster.objects("events"))[0]
    assert (event["reason"], event["firstTimestamp"]) == ("TrainJobResourcesCreationFailed", None)
    assert "must be no more than 63 characters" in event["message"]


def test_a_job_of_a_client_becomes_a_pod_that_mounts_its_claim(cluster):
    pod = {
        "restartPolicy": "Never",
        "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [
            {
                "name": "dataset-initializer",
                "image": "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0",
                "env": [{"name": "STORAGE_URI", "value": "hf://a/b"}],
                "volumeMounts": [{"name": "w", "mountPath": "/workspace"}],
            }
        ],
    }
    spec = {"template": {"spec": pod}}
    cluster.add({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "fetch"}, "spec": spec})
    cluster.until(lambda: cluster.get("Job", "fetch").get("status", {}).get("succeeded"))
    assert cluster.get("Job", "fetch")["status"]["conditions"][0]["type"] == "Complete"
    (made,) = cluster.objects("pods")
    assert log(cluster, made) == ["Fetching hf://a/b"]


def test_a_job_with_a_ttl_goes_when_it_is_over(cluster):
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}
    spec = {"template": {"spec": pod}, "ttlSecondsAfterFinished": 0}
    cluster.add({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "brief"}, "spec": spec})
    cluster.until(lambda: cluster.get("Job", "brief") is None and not cluster.objects("pods"))


def test_a_pod_without_an_owner_is_not_run(cluster):
    cluster.add(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine"}, "spec": {"containers": [{"name": "c"}]}}
    )
    cluster.add(job("other", "pass"))
    ended(cluster, "other")
    assert "status" not in cluster.get("Pod", "mine")


def test_what_a_pod_installs_stays_in_it(cluster):
    file = "pathlib.Path(sysconfig.get_path('purelib'), 'mine')"
    code = f"import sysconfig, pathlib; print({file}.exists()); {file}.touch()"
    for name in ("one", "two"):
        cluster.add(job(name, code))
        ended(cluster, name)
    assert [log(cluster, pods(cluster, name)[0]) for name in ("one", "two")] == [["False"], ["False"]]


def runtime_with(cluster, **fields):
    """Add a runtime ``own`` whose Job has these fields."""
    made = runtime("own", "plain")
    made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"].update(fields)
    cluster.add(made)


def is_terminating(pod: dict) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def test_a_pod_is_replaced_while_it_is_still_terminating():
    with Cluster(grace=600) as cluster:
        cluster.add(job("long", "import signal; signal.signal(15, signal.SIG_IGN);" + FOREVER))
        (pod,) = running(cluster, "long")
        cluster.until(lambda: log(cluster, pod))
        cluster.delete("pods", pod["metadata"]["name"], grace=30)
        old, new = cluster.until(lambda: len(running(cluster, "long")) == 2 and pods(cluster, "long"))
    assert sorted(map(is_terminating, (old, new))) == [False, True]
    assert old["spec"]["hostname"] == new["spec"]["hostname"]


def test_a_job_that_replaces_failed_pods_only_waits_for_their_end(cluster):
    runtime_with(cluster, podReplacementPolicy="Failed")
    cluster.add(job("long", FOREVER, runtime="own"))
    (pod,) = running(cluster, "long")
    cluster.until(lambda: log(cluster, pod))
    cluster.delete("pods", pod["metadata"]["name"], grace=30)
    cluster.until(lambda: [each["metadata"]["uid"] for each in running(cluster, "long")] != [pod["metadata"]["uid"]])
    changes = [each["object"] for each in watch_pods(cluster, pod)]
    at_once = [each for each in changes if each["metadata"]["uid"] == pod["metadata"]["uid"]]
    assert is_terminating(at_once[-1])
    assert changes[: len(at_once)] == at_once


def watch_pods(cluster, since: dict) -> list[dict]:
    """What has happened to pods since a state of one of them."""
    path = f"/api/v1/namespaces/default/pods?watch=true&resourceVersion={since['metadata']['resourceVersion']}"
    with RawClient(cluster.url) as client:
        return list(client.watch(f"{path}&timeoutSeconds=1"))


@pytest.mark.parametrize("policy", [{}, {"podReplacementPolicy": "Failed"}])
def test_pods_that_are_deleted_count_towards_the_backoff_limit(cluster, policy):
    runtime_with(cluster, backoffLimit=0, **policy)
    cluster.add(job("long", FOREVER, runtime="own"))
    (pod,) = running(cluster, "long")
    cluster.delete("pods", pod["metadata"]["name"], grace=30)
    assert ended(cluster, "long")["reason"] == "FailedJobs"


@pytest.mark.parametrize(
    ("code", "exit_code"), [(FOREVER, 137), ("import signal; signal.signal(15, lambda *_: exit(7));" + FOREVER, 7)]
)
def test_the_first_process_of_a_container_does_not_get_a_sigterm_for_which_it_has_no_handler(code, exit_code):
    with Cluster(grace=600) as cluster:
        cluster.add(job("long", code))
        (pod,) = running(cluster, "long")
        cluster.until(lambda: log(cluster, pod))
        cluster.delete("pods", pod["metadata"]["name"], grace=30)
        cluster.until(lambda: pod["metadata"]["uid"] not in [each["metadata"]["uid"] for each in pods(cluster, "long")])
        changes = [each["object"] for each in watch_pods(cluster, pod)]
    last = [each for each in changes if each["metadata"]["uid"] == pod["metadata"]["uid"]][-1]
    assert container(last)["state"]["terminated"]["exitCode"] == exit_code


def test_the_nodes_of_a_runtime_that_is_built_here_restart_together(cluster):
    cluster.add(build_torch_runtime(RuntimeParameters("together")))
    cluster.add(job("long", FOREVER, runtime="together", nodes=2))
    first = cluster.until(lambda: len(running(cluster, "long")) == 2 and running(cluster, "long"))
    cluster.delete("pods", first[1]["metadata"]["name"], grace=30)
    old = {pod["metadata"]["uid"] for pod in first}
    cluster.until(
        lambda: len(running(cluster, "long")) == 2 and not old & {p["metadata"]["uid"] for p in pods(cluster, "long")}
    )
    assert cluster.get(JOBSETS, "long")["status"]["restarts"] == 1
