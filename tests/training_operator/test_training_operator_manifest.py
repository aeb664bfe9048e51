"""Rendering of PyTorchJobs: golden files, the CRD's schema and validation.

To update the golden files after an intended change: UPDATE_GOLDEN=1.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
import yaml
from fake_cluster import crds
from training_operator_scene import CONTAINER, build_request

from trainer_core import TRLConfig
from trainer_core.backends.training_operator import config, manifest, runtime_templates, validation
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.k8s import labels
from trainer_core.model.request import TrainJobRequest
from trainer_core.packaging.argv_payload import find_payload
from trainer_core.packaging.serializer import package

GOLDEN = Path(__file__).with_name("golden")
CONFIG = config.TrainingOperatorBackendConfig()
TORCH = "torch-distributed"


def train(lr=0.1):
    return lr


def build_pod_patch(**pod):
    """Return a RuntimePatch of the pods."""
    jobs = [{"name": "node", "template": {"spec": {"template": pod}}}]
    spec = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"manager": "trainjob-workflows.dev/trainer", "trainingRuntimeSpec": spec}


REQUESTS = {
    "one-node": build_request(runtime=TORCH, trainer={"command": ["torchrun", "train.py"], "env": {"A": "$(B)"}}),
    "three-nodes": build_request(
        runtime=TORCH,
        trainer={"num_nodes": 3, "num_proc_per_node": 2, "resources_per_node": {"cpu": 4, "memory": "8Gi"}},
        active_deadline_seconds=3600,
        delete_after_seconds=600,
        suspend=True,
        metadata={"labels": {"kueue.x-k8s.io/queue-name": "nightly"}},
    ),
    "gpus": build_request(runtime=TORCH, trainer={"resources_per_node": {"gpu": 4}}),
    "elastic": build_request(
        runtime=TORCH,
        trainer={"num_nodes": 2},
        pytorch_job={"elastic_policy": {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10}},
    ),
    "configured": build_request(
        runtime=TORCH,
        trainer={"num_nodes": 2, "env": {"LR": "0.1"}},
        distributed={
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "env_from": [{"configMapRef": {"name": "settings"}}],
            "requests": {"cpu": "2"},
            "limits": {"memory": "4Gi"},
            "labels": {"team": "vision"},
            "annotations": {"sidecar.istio.io/inject": "false"},
            "node_selector": {"zone": "a"},
            "affinity": {"podAntiAffinity": {}},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "run_policy": {"backoffLimit": 2, "cleanPodPolicy": "All", "schedulingPolicy": {"queue": "research"}},
        },
    ),
    "fetches": build_request(
        initializer={
            "dataset": {"storage_uri": "hf://owner/data", "secrets": {"ACCESS_TOKEN": {"name": "hub", "key": "token"}}},
            "model": {"storage_uri": "pvc://models/llm"},
        }
    ),
    "patched": build_request(
        patches=[
            build_pod_patch(
                metadata={"labels": {"team": "nlp"}},
                spec={
                    "serviceAccountName": "trainer",
                    "nodeSelector": {"gpu": "a100"},
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}],
                    "containers": [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                },
            )
        ],
    ),
}


def render(request):
    runtime = runtime_templates.get_raw_runtime(None, request.work.runtime.name)
    validation.check_request(request, runtime)
    return manifest.render_pytorch_job(request, runtime, CONFIG, "team")


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_renders_its_golden_file(case):
    job = render(REQUESTS[case])
    job["metadata"]["annotations"] = dict.fromkeys(job["metadata"]["annotations"], "…")
    text = yaml.safe_dump(job, sort_keys=True, allow_unicode=True)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8")
    assert text == golden, "".join(difflib.unified_diff(golden.splitlines(True), text.splitlines(True)))


def test_trl_is_a_pytorchjob_whose_nodes_start_torchrun():
    trainer = TRLConfig(method="grpo", num_nodes=2).to_trainer({})
    job = render(TrainJobRequest.parse({"name": "job", "runtime": {"name": "trl-llm"}, "trainer": trainer}))
    assert crds.list_violations(job) == []
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["args"][0]) == ("huggingface/trl:1.16.0", "torchrun")
    assert find_payload(job)["args"] == {"method": "grpo"}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_rendered_job_is_valid_by_the_schema_of_the_operator(case):
    assert crds.list_violations(render(REQUESTS[case])) == []


def test_a_function_is_in_the_command_and_the_request_in_an_annotation():
    trainer = {"kind": "custom", "code": package(train, {"lr": 0.5}), "num_nodes": 2}
    request = TrainJobRequest.parse({"name": "job", "trainer": trainer, "runtime": {"name": TORCH}})
    job = render(request)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert (container["command"][:2], container["args"][0]) == (["python3", "-c"], "torchrun")
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    assert TrainJobRequest.from_json(job["metadata"]["annotations"][labels.REQUEST]) == request


def test_every_replica_asks_for_the_memory_of_the_attempt():
    trainer = {"kind": "container", "image": "x", "num_nodes": 2, "resources_per_node": {"memory": "8Gi"}}
    fields = {"name": "job", "runtime": {"name": "python"}, "more_memory": {"limit": "32Gi"}}
    job = render(TrainJobRequest.parse({**fields, "trainer": trainer, "attempt_memory": "12Gi"}))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: each["template"]["spec"]["containers"][0]["resources"] for name, each in replicas.items()} == {
        name: {"requests": {"memory": "12Gi"}, "limits": {"memory": "12Gi"}} for name in ("Master", "Worker")
    }


def test_a_rendered_job_shares_no_objects_with_the_request():
    request = REQUESTS["configured"]
    before = request.to_json()
    first = render(request)
    first["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["tolerations"].clear()
    assert (request.to_json(), render(request) == first) == (before, False)


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({}, "1"),
        ({"resources_per_node": {"cpu": "3500m"}}, "3"),
        ({"resources_per_node": {"gpu": 2}}, "auto"),
        ({"num_proc_per_node": 6, "resources_per_node": {"gpu": 2}}, "6"),
    ],
    ids=["no resources", "cpus", "gpus", "a number"],
)
def test_the_number_of_processes_is_that_of_trainer(trainer, processes):
    assert render(build_request(runtime=TORCH, trainer=trainer))["spec"]["nprocPerNode"] == processes


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, "Never"),
        ({"pytorch_job": {"restart_policy": "ExitCode"}}, "ExitCode"),
        ({"pytorch_job": {"run_policy": {"backoffLimit": 3}}}, "OnFailure"),
        ({"distributed": {"run_policy": {"backoffLimit": 0}}}, "Never"),
    ],
    ids=["default", "a policy", "a limit", "a limit of 0"],
)
def test_the_restart_policy_is_never_by_default(fields, policy):
    (replica,) = render(build_request(**fields))["spec"]["pytorchReplicaSpecs"].values()
    assert replica["restartPolicy"] == policy


UNSUPPORTED = {
    "a recipe": ({"trainer": {"kind": "builtin", "image": None, "config": {"epochs": 1}}}, "BuiltinTrainer"),
    "a cache": (
        {"initializer": {"dataset": {"storage_uri": "cache://db/table"}}},
        "the data cache is a feature of Kubeflow Trainer",
    ),
    "this machine": (
        {"initializer": {"model": {"storage_uri": "file:///data"}}},
        "file:// is not supported on a cluster: a cluster cannot read",
    ),
    "processes": ({"trainer": {"num_proc_per_node": 2}}, "always starts 1 process on each node"),
    "elastic Python": ({"pytorch_job": {"elastic_policy": {"maxRestarts": 1}}}, "does not start torchrun"),
    "another job": (
        {
            "patches": [
                {"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "x"}]}}}}
            ]
        },
        "'x' cannot be changed",
    ),
    "a JobSet": (
        {"patches": [{"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"metadata": {"labels": {"a": "b"}}}}}]},
        "metadata.labels belongs to a JobSet",
    ),
    "a volume": (
        {
            "patches": [
                build_pod_patch(
                    spec={"containers": [{"name": "node", "volumeMounts": [{"name": "no", "mountPath": "/"}]}]}
                )
            ]
        },
        "mounts volume 'no'",
    ),
    "a container": (
        {"patches": [build_pod_patch(spec={"containers": [{"name": "side"}]})]},
        "has no container 'side' there; it has node",
    ),
    "a workspace": ({"workspace": {}}, "workspace is supported only by `initialize`"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_part_of_a_request_is_refused_by_name(case):
    fields, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=message) as refused:
        render(build_request(**fields))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": {"env": {"RANK": "1", "PET_NNODES": "1"}}}, "must not set PET_NNODES, RANK"),
        ({"initializer": {"model": {"storage_uri": "pvc://a/../b"}}}, r"without '\.\.'"),
        ({"metadata": {"labels": {labels.OWNER: "x"}}}, "is reserved by the backend"),
        (
            {
                "runtime": TORCH,
                "trainer": {"num_nodes": 9},
                "pytorch_job": {"elastic_policy": {"minReplicas": 1, "maxReplicas": 4}},
            },
            "num_nodes=9 must be between minReplicas=1 and maxReplicas=4",
        ),
    ],
    ids=["the operator's variables", "a path outside of a claim", "a reserved label", "too many nodes"],
)
def test_an_invalid_value_is_refused(fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        render(build_request(**fields))


@pytest.mark.parametrize("file", ["team.yaml", "team.yml"])
def test_a_request_is_merged_over_a_runtime_of_the_folder(tmp_path, file):
    raw = runtime_templates.get_raw_runtime(None, "python")
    raw["metadata"]["name"] = "team"
    pod = raw["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["metadata"] = {"labels": {"team": "vision"}}
    pod["spec"]["containers"][0].update(env=[{"name": "A", "value": "1"}], command=["train"])
    (tmp_path / file).write_text(yaml.safe_dump(raw), encoding="utf-8")
    (tmp_path / "notes.yaml").write_text("{kind: Pod}", encoding="utf-8")

    request = TrainJobRequest.parse({"name": "job", "runtime": {"name": "team"}})
    runtime = runtime_templates.get_raw_runtime(tmp_path, "team")
    validation.check_request(request, runtime)
    job = manifest.render_pytorch_job(request, runtime, CONFIG, "team")
    template = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]

    (container,) = template["spec"]["containers"]
    assert (template["metadata"], container["command"]) == ({"labels": {"team": "vision"}}, ["train"])
    assert {entry["name"] for entry in container["env"]} == {"A", "TRAINJOB_NAME"}
    assert CONTAINER["image"] != container["image"]
