"""The components on a cluster: what a KFP backend starts, against an API server, with pods that are processes."""

from __future__ import annotations

import hashlib
import signal
import subprocess

import kfp_definitions as definitions
import pytest
import yaml
from fake_cluster import Cluster
from fake_cluster.runtimes import runtime
from kfp_backend import WORKFLOW_DEFINITION
from kfp_driver import REPOSITORY, DrivenTask
from mlflow_double import serve_mlflow
from patient_tracking import be_patient

from trainer_core import CustomTrainer
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.testing.training_functions import run_out_of_memory

pytestmark = pytest.mark.slow  # 38 s of processor: each test starts a step and a job

WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-1", "uid": "w-1"}


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        cluster.add(WORKFLOW_DEFINITION)
        cluster.add(runtime("python-with-policy", "plain", {"numNodes": 1}))
        yield cluster


@pytest.fixture
def namespace(cluster, request):
    """A namespace of the test's own; no job outlives the test."""
    name = f"test-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    for job in cluster.objects("TrainJob", name):
        cluster.delete("TrainJob", job["metadata"]["name"], name)


@pytest.fixture
def task(cluster, namespace, tmp_path):
    """Make a task of a component that runs on the cluster."""
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "namespace": namespace}

    def make(component, name="task-1", artifacts=None, facts=None, **inputs):
        places = {} if component in ("wait", "suspend", "resume") else {"backend": "kubernetes"}
        given = {"backend_config": config, **places, **inputs}
        return DrivenTask(component, tmp_path / "run" / name, given, artifacts or {}, facts or {})

    return make


def request_for(func, func_args=None, runtime="python"):
    trainer = CustomTrainer(func=func, func_args=func_args)
    return request_builder.build_request_data(backend=backend_for("kubernetes"), runtime=runtime, trainer=trainer)


@pytest.fixture
def jobs(cluster, namespace):
    return lambda: cluster.objects("TrainJob", namespace)


ARGUMENTS = {"epochs": 2, "learning_rate": 0.1}
ENDLESS = request_for(definitions.run_for_ever)


def test_a_task_trains_on_the_cluster_and_writes_its_outputs(task):
    training = task("train", request=request_for(definitions.train_a_little, ARGUMENTS))

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert training.output("result")["accuracy"] == 0.9
    assert "[node-0] a line of the log, with python3 in it\n" in finished.stdout


def test_a_separate_task_waits_for_the_job(task, jobs):
    training = task("submit", request=request_for(definitions.train_a_little, ARGUMENTS))
    training.run()
    waiting = task("wait", "wait", job=training.output("job"), metric_name="accuracy")

    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    assert (waiting.output("metric"), len(jobs())) == (0.9, 1)


def test_the_next_attempt_of_a_task_asks_for_more_memory(task, cluster, jobs):
    request = request_for(run_out_of_memory, runtime="python-with-policy")
    request["trainer"]["resources_per_node"] = {"memory": "1Gi"}
    options = {"more_memory": {"limit": "1536Mi"}, "checkpoints": {"uri": "pvc://checkpoints/kfp"}}

    finished = task("train", request={**request, **options}, attempts=5, backoff=0).run()

    memory = [job["spec"]["trainer"]["resourcesPerNode"]["limits"]["memory"] for job in jobs()]
    assert (finished.returncode, memory) == (1, ["1Gi", "1536Mi"])
    assert "1536Mi, the limit of MoreMemory, was not enough" in finished.stdout + finished.stderr


def test_a_step_that_does_not_wait_completes_the_run_of_its_job(task, monkeypatch):
    be_patient(monkeypatch)
    with serve_mlflow() as mlflow:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mlflow.port}")
        submitted = task("submit", request=ENDLESS)
        finished = submitted.run()

    assert finished.returncode == 0, finished.stderr
    assert mlflow.tags["trainjob.uid"] == submitted.output("job")["uid"]


def until_it_trains(process):
    for line in process.stdout:
        if "training has begun" in line:
            return
    pytest.fail(f"it ended before it trained: {process.stderr.read()}")


@pytest.mark.parametrize("component", ["train", "wait"])
def test_a_retry_of_an_evicted_step_continues_with_the_same_job(task, cluster, jobs, namespace, tmp_path, component):
    """The step is killed while it waits; the next try, in another pod, continues with the same job."""
    marker = tmp_path / "finish"
    request = request_for(definitions.train_until, {"marker": str(marker)})
    given = {"request": request}
    if component == "wait":
        submitted = task("submit", "submitted", request=request)
        submitted.run()
        given = {"job": submitted.output("job")}
    launched = task(component, **given)
    process = launched.start()
    until_it_trains(process)
    process.kill()
    process.communicate()
    marker.touch()

    finished = launched.run()

    assert finished.returncode == 0, finished.stderr
    assert "[node-0] training has begun\n" in finished.stdout
    assert (launched.output("result"), len(jobs())) == ({"accuracy": 0.7}, 1)


def terminate(launched):
    """Send SIGTERM to a step whose job trains; return its exit code and the last line of its log but one."""
    process = subprocess.Popen(launched.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_it_trains(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors.splitlines()[-2]


def test_a_step_outside_a_pod_that_gets_sigterm_ends_its_job(task, cluster, namespace):
    code, _ = terminate(task("train", request=ENDLESS))

    assert code == 143
    cluster.until(lambda: not [p for p in cluster.objects("pods", namespace) if p["status"]["phase"] == "Running"])


def test_command_and_args_of_an_image_may_be_inputs(task, jobs):
    """Another team uses the YAML, and writes its definition by hand."""
    request = {"runtime": "torch-distributed", "trainer": {"image": "registry.example/train:1.0"}}

    finished = task("submit", request=request, command=["python", "train.py"], args=["--epochs", "3"]).run()

    assert finished.returncode == 0, finished.stderr
    trainer = jobs()[0]["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["python", "train.py"], ["--epochs", "3"])


#: What KFP adds to the pod of a step with an input that names its workspace, and to the TaskConfig.
WORKSPACE = {
    "volumes": [{"name": "kfp-workspace", "persistentVolumeClaim": {"claimName": "run-1-kfp-workspace"}}],
    "volumeMounts": [{"name": "kfp-workspace", "mountPath": "/kfp-workspace"}],
}


@pytest.fixture
def launcher(cluster, namespace, monkeypatch):
    """The pod of the step, as KFP and Argo make it: what the environment of the step says of it."""
    owners = [{**WORKFLOW, "controller": True}]
    main = {"name": "main", "image": "x:1", "volumeMounts": WORKSPACE["volumeMounts"]}
    labels = {"pipeline/runid": "id-of-the-run"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "step-pod", "namespace": namespace, "labels": labels, "ownerReferences": owners},
        "spec": {"containers": [main], "volumes": WORKSPACE["volumes"]},
    }
    uid = cluster.add(pod)["metadata"]["uid"]
    monkeypatch.setenv("KFP_POD_NAME", "step-pod")
    monkeypatch.setenv("KFP_POD_UID", uid)


@pytest.fixture
def workflow(cluster, namespace, launcher):
    """Make the Workflow of the step's run."""

    def make(**spec):
        metadata = {"name": WORKFLOW["name"], "namespace": namespace}
        cluster.add({"apiVersion": WORKFLOW["apiVersion"], "kind": "Workflow", "metadata": metadata, "spec": spec})

    return make


@pytest.mark.parametrize("component", ["train", "wait"])
def test_a_step_of_a_terminated_run_cancels_its_job(task, jobs, workflow, component):
    workflow(activeDeadlineSeconds=0)
    given = {"request": ENDLESS}
    if component == "wait":
        submitted = task("submit", "submitted", request=ENDLESS)
        submitted.run()
        given = {"job": submitted.output("job")}

    code, said = terminate(task(component, **given))

    name = jobs()[0]["metadata"]["name"]
    assert (code, said, jobs()[0]["spec"]["suspend"]) == (143, f"terminated: TrainJob {name} is cancelled", True)


@pytest.mark.usefixtures("launcher")
def test_a_step_of_a_deleted_run_cancels_its_job(task, jobs):
    terminate(task("train", request=ENDLESS))

    assert jobs()[0]["spec"]["suspend"] is True


def test_a_step_whose_pod_alone_goes_away_leaves_its_job_to_the_next_try(task, jobs, workflow):
    workflow(activeDeadlineSeconds=3600)
    training = task("train", request=ENDLESS)

    code, said = terminate(training)
    name = jobs()[0]["metadata"]["name"]
    second = begun(training)
    second.kill()
    second.communicate()

    reason = "the run was not terminated; the next try of this step attaches to the job"
    assert (code, said) == (143, f"terminated: TrainJob {name} continues: {reason}")
    assert [(job["metadata"]["name"], job["spec"].get("suspend", False)) for job in jobs()] == [(name, False)]


def test_a_step_that_cannot_read_its_workflow_leaves_its_job_alone(task, cluster, namespace, jobs, workflow):
    workflow(activeDeadlineSeconds=0)
    cluster.forbid("get", "workflows", namespace)

    code, said = terminate(task("train", request=ENDLESS))

    assert (code, jobs()[0]["spec"].get("suspend", False)) == (143, False)
    assert "the Workflow of the run cannot be read; if the run was terminated, `trainjob reap --runs-in NAME" in said


def test_a_step_with_on_kill_keep_leaves_its_job_alone_in_a_terminated_run(task, jobs, workflow):
    workflow(activeDeadlineSeconds=0)

    code, said = terminate(task("train", request=ENDLESS, on_kill="keep"))

    name = jobs()[0]["metadata"]["name"]
    assert (code, said) == (143, f"terminated: TrainJob {name} continues: on_kill is keep")
    assert not jobs()[0]["spec"].get("suspend")


ON_KILL = "trainjob-workflows/kfp-on-kill"


def begun(launched):
    """Start a step and return it when its job trains and is bound to the run."""
    process = launched.start()
    until_it_trains(process)
    return process


@pytest.fixture
def waits():
    """Start a step that waits for a job; it is killed at the end of the test."""
    processes = []

    def start(launched):
        processes.append(begun(launched))

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("launcher")
def test_while_a_step_waits_for_its_job_the_workflow_owns_it(task, jobs, waits):
    waits(task("train", request=ENDLESS))

    assert [job["metadata"]["ownerReferences"] for job in jobs()] == [[WORKFLOW]]


@pytest.mark.usefixtures("launcher")
def test_a_job_that_no_step_waits_for_outlives_the_workflow(task, jobs):
    finished = task("submit", request=ENDLESS).run()

    assert finished.returncode == 0, finished.stderr
    assert "ownerReferences" not in jobs()[0]["metadata"]
    assert jobs()[0]["metadata"]["labels"]["trainjob-workflows/kfp-run"] == "id-of-the-run"


@pytest.mark.usefixtures("launcher")
def test_a_job_belongs_to_the_workflow_from_the_moment_a_step_waits_for_it(task, jobs, waits):
    submitted = task("submit", "submitted", request=ENDLESS)
    submitted.run()

    waits(task("wait", job=submitted.output("job")))

    assert jobs()[0]["metadata"]["ownerReferences"] == [WORKFLOW]


@pytest.mark.usefixtures("launcher")
def test_a_job_of_another_run_does_not_belong_to_the_workflow(task, jobs, waits):
    submitted = task("submit", "submitted", request=ENDLESS, run_id="another-run")
    submitted.run()

    waits(task("wait", job=submitted.output("job")))

    assert "ownerReferences" not in jobs()[0]["metadata"]


@pytest.mark.usefixtures("launcher")
def test_a_job_that_a_terminated_step_keeps_outlives_the_workflow(task, jobs, waits):
    waits(task("train", request=ENDLESS, on_kill="keep"))

    assert "ownerReferences" not in jobs()[0]["metadata"]
    assert jobs()[0]["metadata"]["labels"][ON_KILL] == "keep"


@pytest.mark.usefixtures("launcher")
def test_a_job_is_released_after_the_timeout(task, jobs):
    # A first try, which is killed: the job of the second one runs already, however slow this machine is.
    process = begun(task("train", request=ENDLESS))
    process.kill()
    process.communicate()
    assert jobs()[0]["metadata"]["ownerReferences"] == [WORKFLOW]

    finished = task("train", request=ENDLESS, timeout=1).run()

    assert "is still Running after the timeout; it was not stopped" in finished.stderr
    assert jobs()[0]["metadata"].get("ownerReferences", []) == []
    assert ON_KILL not in jobs()[0]["metadata"]["labels"]


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(("seconds", "owners"), [(None, [WORKFLOW]), (604_800, [])])
def test_an_ended_job_goes_with_the_workflow_unless_it_has_a_delete_after(task, jobs, seconds, owners):
    request = {**request_for(definitions.train_a_little, ARGUMENTS), "delete_after_seconds": seconds}

    finished = task("train", request=request).run()

    assert finished.returncode == 0, finished.stderr
    assert jobs()[0]["metadata"]["ownerReferences"] == owners


@pytest.mark.usefixtures("launcher")
def test_a_job_has_the_labels_of_its_run_from_its_creation(task, cluster, jobs, namespace):
    """A step that is killed right after the create leaves a job that `trainjob reap` finds."""
    cluster.forbid("patch", "trainjobs", namespace)

    finished = task("train", request=request_for(definitions.train_a_little, ARGUMENTS)).run()

    assert "is not bound to the run" in finished.stderr
    labels = jobs()[0]["metadata"]["labels"]
    assert (labels["trainjob-workflows/kfp-run"], labels[ON_KILL]) == ("id-of-the-run", "cancel")


#: More answers than one request repeats by itself.
OFTEN = {"retry_after": 0.01, "times": 7}


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/pods", id="the pod of the step is read"),
        pytest.param("POST", "/trainjobs", id="the job is created"),
        pytest.param("PATCH", "/trainjobs/", id="the job is bound to the run"),
        pytest.param("GET", "/trainjobs/", id="the job is read"),
    ],
)
def test_a_step_rides_out_an_api_server_that_is_away(task, cluster, jobs, monkeypatch, caplog, method, path, status):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "60")
    cluster.faults.next(method=method, path=path, status=status, **OFTEN)

    finished = task("train", request=request_for(definitions.train_a_little, ARGUMENTS)).run()

    cluster.faults.clear()
    assert finished.returncode == 0, finished.stderr
    assert [job["metadata"]["ownerReferences"] for job in jobs()] == [[WORKFLOW]]
    assert "repeated for" in finished.stderr + caplog.text


@pytest.mark.parametrize("component", ["suspend", "resume", "delete"])
def test_a_step_that_changes_a_job_rides_out_an_api_server_that_is_away(task, cluster, monkeypatch, caplog, component):
    submitted = task("submit", "submitted", request=ENDLESS)
    submitted.run()
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "60")
    cluster.faults.next(method="GET", path="/trainjobs/", status=503, **OFTEN)

    finished = task(component, "changed", job=submitted.output("job")).run()

    cluster.faults.clear()
    assert finished.returncode == 0, finished.stderr
    assert "repeated for" in finished.stderr + caplog.text


def test_a_step_that_cannot_reach_the_api_server_any_more_says_so_once_its_limit_is_over(task, cluster, monkeypatch):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "0.1")
    cluster.faults.next(status=503, retry_after=0.01, times=1000)

    finished = task("submit", request=ENDLESS).run()

    cluster.faults.clear()
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("error: ")


def test_a_step_goes_on_when_its_token_was_renewed(task, cluster, namespace, tmp_path):
    marker = tmp_path / "finish"
    training = task("train", request=request_for(definitions.train_until, {"marker": str(marker)}))
    process = begun(training)
    before = cluster.tokens
    try:
        cluster.tokens = {"renewed"}
        cluster.kubeconfig(tmp_path / "kubeconfig")
        cluster.break_watches()
        marker.touch()
        _, errors = process.communicate(timeout=300)
    finally:
        cluster.tokens = before
    assert process.returncode == 0, errors
    assert training.output("result") == {"accuracy": 0.7}


@pytest.mark.usefixtures("launcher")
def test_a_job_that_fetches_belongs_to_the_run_too(fetched, cluster, namespace):
    (job,) = cluster.objects("jobs", namespace)

    assert job["metadata"]["ownerReferences"] == [WORKFLOW]
    assert job["metadata"]["labels"]["trainjob-workflows/kfp-run"] == "id-of-the-run"


@pytest.mark.usefixtures("launcher")
def test_a_retry_leaves_one_owner(task, jobs):
    training = task("train", request=request_for(definitions.train_a_little, ARGUMENTS))

    codes = [training.run().returncode, training.run().returncode]

    assert codes == [0, 0]
    assert [job["metadata"]["ownerReferences"] for job in jobs()] == [[WORKFLOW]]


@pytest.mark.usefixtures("launcher")
def test_a_step_without_permission_to_list_pods_still_submits(task, cluster, jobs, namespace):
    cluster.forbid("list", "pods", namespace)

    finished = task("submit", request=ENDLESS).run()

    assert finished.returncode == 0, finished.stderr
    assert "the run of this step is not known" in finished.stderr
    assert "ownerReferences" not in jobs()[0]["metadata"]


@pytest.mark.usefixtures("launcher")
def test_a_step_without_any_permission_asks_for_trainjobs_alone(task, cluster, namespace):
    for resource in ("trainjobs", "pods", "events", "trainingruntimes"):
        cluster.forbid("*", resource, namespace)

    finished = task("train", request=ENDLESS).run()

    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert "ask for a role that may list trainjobs.trainer.kubeflow.org" in line


def test_numbers_that_are_not_finite_are_named_in_the_log(task):
    finished = task("train", request=request_for(definitions.diverge)).run()

    assert finished.returncode == 0, finished.stderr
    assert "null instead of a number that is not finite: result.loss, result.norm" in finished.stdout


@pytest.mark.usefixtures("launcher")
def test_a_job_with_a_job_name_outlives_the_run(task, jobs, waits):
    waits(task("train", request=ENDLESS, job_name="shared"))

    assert "ownerReferences" not in jobs()[0]["metadata"]


#: As the driver of KFP 2.17 writes it: camelCase, null for what is not set, every number a float.
TASK_CONFIG = {
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300.0}],
    "nodeSelector": {"gpu": "a100"},
    "env": [
        {"name": "MODE", "value": "fast"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}},
    ],
    "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared", "readOnly": None}}],
    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "4", "nvidia.com/gpu": "2"}},
}


@pytest.fixture
def configured(task, jobs):
    training = task(
        "submit", request=request_for(definitions.run_for_ever, runtime="torch-distributed"), task_config=TASK_CONFIG
    )
    finished = training.run()
    assert finished.returncode == 0, finished.stderr
    (job,) = jobs()
    return job["spec"]


def patched_pods(spec):
    (patch,) = spec["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    return replicated["template"]["spec"]["template"]["spec"]


def test_resources_and_environment_of_the_task_reach_the_trainer(configured):
    env = {entry["name"]: entry for entry in configured["trainer"]["env"]}

    assert configured["trainer"]["resourcesPerNode"] == TASK_CONFIG["resources"]
    assert env["MODE"]["value"] == "fast"
    assert env["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hugging-face", "key": "token"}


def test_placement_of_the_task_reaches_the_pods(configured):
    pods = patched_pods(configured)

    assert pods["nodeSelector"] == {"gpu": "a100"}
    assert pods["tolerations"] == [{**TASK_CONFIG["tolerations"][0], "tolerationSeconds": 300}]
    assert "nodeAffinity" in pods["affinity"]


def test_volumes_of_the_task_reach_the_pods(configured):
    pods = patched_pods(configured)

    assert pods["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert pods["containers"] == [{"name": "node", "volumeMounts": TASK_CONFIG["volumeMounts"]}]


@pytest.fixture
def fetched(task):
    """A dataset in a claim."""
    fetching = task("initialize_dataset", "fetch", storage_uri="hf://a/b", workspace={"claim": "data"})
    finished = fetching.run()
    assert finished.returncode == 0, finished.stderr
    return fetching


def test_what_is_fetched_into_a_claim_is_read_by_the_job_that_trains(task, fetched):
    request = request_for(definitions.read_the_dataset)
    training = task("train", request=request, dataset_uri=fetched.output("uri"))

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert training.output("result") == {"files": {"source.txt": "hf://a/b"}}


def test_the_uri_of_fetched_data_is_an_output_and_metadata_of_the_artifact(fetched):
    (dataset,) = fetched.executor_output()["artifacts"]["dataset"]["artifacts"]

    assert (fetched.output("uri"), fetched.output("status")) == ("pvc://data/dataset", "Complete")
    assert (dataset["metadata"]["uri"], dataset["metadata"]["storage_uri"]) == ("pvc://data/dataset", "hf://a/b")


def test_the_keys_of_a_store_reach_the_initializer_by_reference(task, cluster, namespace):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "object-store", "namespace": namespace}}
    cluster.add({**secret, "data": {"accesskey": "a2V5", "secretkey": "c2VjcmV0"}})

    finished = task("initialize_dataset", storage_uri="s3://a/b", secret="object-store").run()

    assert finished.returncode == 0, finished.stderr
    (job,) = cluster.objects("jobs", namespace)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    referred = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if "valueFrom" in entry}
    assert referred["ACCESS_KEY_ID"] == {"name": "object-store", "key": "accesskey"}
    assert referred["SECRET_ACCESS_KEY"] == {"name": "object-store", "key": "secretkey"}


def test_the_artifact_of_fetched_data_keeps_the_uri_that_kfp_gave_it(fetched):
    (dataset,) = fetched.executor_output()["artifacts"]["dataset"]["artifacts"]

    assert dataset["uri"] == str(fetched.artifact("dataset"))


def test_the_artifact_of_fetched_data_is_read_by_the_job_that_trains(task, fetched):
    dataset = {"dataset": fetched.artifact("dataset")}
    facts = {"dataset": fetched.metadata("dataset")}
    request = request_for(definitions.read_the_dataset)
    training = task("train", artifacts=dataset, facts=facts, request=request)

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert training.output("result") == {"files": {"source.txt": "hf://a/b"}}


def test_a_claim_outlives_the_job_that_fetched_into_it(task, cluster, namespace, fetched):
    task("delete", "delete", job=fetched.output("job")).run()

    assert cluster.objects("jobs", namespace) == []
    assert cluster.get("PersistentVolumeClaim", "data", namespace)


def trained_in_the_workspace(task, **inputs):
    request = request_for(definitions.train_a_little, ARGUMENTS)
    training = task("train", request=request, output_path="/kfp-workspace/models", **inputs)
    finished = training.run()
    assert finished.returncode == 0, finished.stderr
    return training.metadata("model")["uri"]


def test_a_job_writes_its_model_into_the_workspace_that_kfp_passes_on(task):
    assert trained_in_the_workspace(task, task_config=WORKSPACE).startswith("file:///kfp-workspace/models/")


@pytest.mark.usefixtures("launcher")
def test_a_component_loaded_from_yaml_finds_the_workspace_in_its_own_pod(task):
    """KFP passes no TaskConfig to it."""
    assert trained_in_the_workspace(task).startswith("file:///kfp-workspace/models/")


@pytest.mark.usefixtures("launcher")
def test_a_dataset_in_the_workspace_of_the_step_is_mounted_in_training(task, cluster, namespace):
    data = cluster.claims_folder(namespace) / "run-1-kfp-workspace" / "digits"
    data.mkdir(parents=True)
    (data / "a.csv").write_text("1,2")
    request = request_for(definitions.read_the_dataset)
    training = task("train", request=request, dataset_uri="/kfp-workspace/digits")

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert training.output("result") == {"files": {"a.csv": "1,2"}}


def test_a_step_without_the_workspace_cannot_pass_it_on(task, jobs):
    finished = task("train", request=ENDLESS, output_path="/kfp-workspace").run()

    assert (finished.returncode, jobs()) == (1, [])
    assert "no volume claim is mounted at /kfp-workspace" in finished.stderr


def test_an_exit_task_deletes_the_jobs_of_its_run(task, jobs):
    task("submit", "submit", request=ENDLESS, run_id="run-1").run()
    task("submit", "other", request=ENDLESS, run_id="run-2").run()

    finished = task("delete", "delete", run_id="run-1").run()

    assert finished.returncode == 0, finished.stderr
    assert [job["metadata"]["labels"]["trainjob-workflows/kfp-run"] for job in jobs()] == ["run-2"]


def test_a_job_that_cannot_start_fails_its_task_at_once(task, cluster, namespace):
    cluster.lives.set("broken", "image-pull-error")

    finished = task("train", request=ENDLESS, job_name="broken").run()

    assert finished.returncode == 1
    assert "Image in node-0" in finished.stderr


def request_of(pipeline):
    """The request that a committed pipeline submits."""
    document = next(yaml.safe_load_all((REPOSITORY / "pipelines" / f"{pipeline}.yaml").read_text()))
    inputs = document["root"]["dag"]["tasks"]["submit"]["inputs"]["parameters"]
    return inputs["request"]["runtimeValue"]["constant"]


def test_the_cluster_takes_what_the_scheduled_pipeline_submits(task, jobs):
    mounted = {
        "env": [{"name": "TRAINJOB_OUTPUT_PATH", "value": "/workspace/output"}],
        "volumes": [{"name": "digits", "persistentVolumeClaim": {"claimName": "digits"}}],
        "volumeMounts": [{"name": "digits", "mountPath": "/workspace"}],
        "resources": {"limits": {"cpu": "2", "memory": "4G"}},
    }
    request, uri = request_of("retrain_scheduled"), "pvc://digits/dataset"

    finished = task("submit", request=request, dataset_uri=uri, task_config=mounted).run()

    assert finished.returncode == 0, finished.stderr
    mounts = patched_pods(jobs()[0]["spec"])["containers"][0]["volumeMounts"]
    assert "/workspace" in {mount["mountPath"] for mount in mounts}


def test_the_cluster_takes_what_the_finetuning_pipeline_submits(task, cluster, jobs):
    cluster.load_stock_runtimes()

    finished = task("submit", request=request_of("finetune_llm"), dataset_uri="hf://tatsu-lab/alpaca").run()

    assert finished.returncode == 0, finished.stderr
    env = {entry["name"]: entry for entry in jobs()[0]["spec"]["initializer"]["model"]["env"]}
    assert env["ACCESS_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "huggingface", "key": "token"}
