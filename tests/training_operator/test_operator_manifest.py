"""A request becomes a PyTorchJob: whole manifests, validated by the operator's own CRD."""

from __future__ import annotations

import difflib
import os
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from fake_cluster import crds
from operator_scene import CONTAINER, a_request

from trainer_core import configs
from trainer_core.backends.training_operator import admission, blueprints, manifest
from trainer_core.cluster import marks
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.packaging import package
from trainer_core.request import TrainJobRequest

GOLDEN = Path(__file__).with_name("golden")
CONFIG = configs.TrainingOperatorBackendConfig()
TORCH = "torch-distributed"


def train(lr=0.1):
    return lr


def patched(**pod):
    """A RuntimePatch of the pods."""
    jobs = [{"name": "node", "template": {"spec": {"template": pod}}}]
    spec = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"manager": "trainjob-workflows.dev/trainer", "trainingRuntimeSpec": spec}


REQUESTS = {
    "one-node": a_request(runtime=TORCH, trainer={"command": ["torchrun", "train.py"], "env": {"A": "$(B)"}}),
    "three-nodes": a_request(
        runtime=TORCH,
        trainer={"num_nodes": 3, "num_proc_per_node": 2, "resources_per_node": {"cpu": 4, "memory": "8Gi"}},
        active_deadline_seconds=3600,
        delete_after_seconds=600,
        suspend=True,
        metadata={"labels": {"kueue.x-k8s.io/queue-name": "nightly"}},
    ),
    "gpus": a_request(runtime=TORCH, trainer={"resources_per_node": {"gpu": 4}}),
    "elastic": a_request(
        runtime=TORCH,
        trainer={"num_nodes": 2},
        pytorch_job={"elastic_policy": {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10}},
    ),
    "configured": a_request(
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
    "fetches": a_request(
        initializer={
            "dataset": {"storage_uri": "hf://owner/data", "secrets": {"ACCESS_TOKEN": {"name": "hub", "key": "token"}}},
            "model": {"storage_uri": "pvc://models/llm"},
        }
    ),
    "patched": a_request(
        patches=[
            patched(
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


def rendered(request):
    runtime = blueprints.get(None, request.runtime.name)
    admission.check(request, runtime)
    return manifest.pytorch_job(request, runtime, CONFIG, "team")


@pytest.mark.parametrize("case", REQUESTS)
def test_the_manifest_is_the_one_that_was_looked_at(case):
    made = rendered(REQUESTS[case])
    made["metadata"]["annotations"] = dict.fromkeys(made["metadata"]["annotations"], "…")
    text = yaml.safe_dump(made, sort_keys=True, allow_unicode=True)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8")
    assert text == known, "".join(difflib.unified_diff(known.splitlines(True), text.splitlines(True)))


@pytest.mark.parametrize("case", REQUESTS)
def test_the_operators_own_schema_knows_every_field(case):
    jsonschema.validate(rendered(REQUESTS[case]), schema())


@cache
def schema():
    """What the operator's CRD says of a PyTorchJob, closed to what it does not say."""
    path = crds.folder() / "training-operator-v1.9" / "crds" / "kubeflow.org_pytorchjobs.yaml"
    if not path.exists():
        pytest.skip(f"{path} is absent; set TRAINJOB_CRD_DIR")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 -- a safe one
    return closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def closed(schema):
    """A schema that refuses what it does not know, as a server does."""
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {name: closed(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and schema["properties"].keys() - {"metadata"}:
            result["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = closed(schema[key])
    return result


def test_a_function_travels_in_the_command_and_its_request_in_an_annotation():
    trainer = {"kind": "custom", "code": package(train, {"lr": 0.5}), "num_nodes": 2}
    request = TrainJobRequest.parse({"name": "job", "trainer": trainer, "runtime": {"name": TORCH}})
    made = rendered(request)
    replicas = made["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert (container["command"][:2], container["args"][0]) == (["python3", "-c"], "torchrun")
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    assert TrainJobRequest.from_json(made["metadata"]["annotations"][marks.REQUEST]) == request


def test_what_is_rendered_shares_nothing_with_the_request_or_the_runtime():
    request = REQUESTS["configured"]
    before = request.to_json()
    first = rendered(request)
    first["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["tolerations"].clear()
    assert (request.to_json(), rendered(request) == first) == (before, False)


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({}, "1"),
        ({"resources_per_node": {"cpu": "3500m"}}, "3"),
        ({"resources_per_node": {"gpu": 2}}, "auto"),
        ({"num_proc_per_node": 6, "resources_per_node": {"gpu": 2}}, "6"),
    ],
    ids=["nothing said", "cpus", "gpus", "a number"],
)
def test_a_node_has_as_many_processes_as_with_trainer(trainer, processes):
    assert rendered(a_request(runtime=TORCH, trainer=trainer))["spec"]["nprocPerNode"] == processes


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, "Never"),
        ({"pytorch_job": {"restart_policy": "ExitCode"}}, "ExitCode"),
        ({"pytorch_job": {"run_policy": {"backoffLimit": 3}}}, "OnFailure"),
        ({"distributed": {"run_policy": {"backoffLimit": 0}}}, "Never"),
    ],
    ids=["nothing said", "a policy", "a limit", "a limit of none"],
)
def test_a_node_is_started_again_only_where_somebody_asks_for_it(given, policy):
    (replica,) = rendered(a_request(**given))["spec"]["pytorchReplicaSpecs"].values()
    assert replica["restartPolicy"] == policy


NO_PLACE = {
    "a recipe": ({"trainer": {"kind": "builtin", "image": None, "config": {"epochs": 1}}}, "BuiltinTrainer"),
    "a cache": (
        {"initializer": {"dataset": {"storage_uri": "cache://db/table"}}},
        "the data cache is a part of Trainer",
    ),
    "this machine": ({"initializer": {"model": {"storage_uri": "file:///data"}}}, "file://: a cluster does not see"),
    "processes": ({"trainer": {"num_proc_per_node": 2}}, "starts one process on each node"),
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
        "metadata.labels is of a JobSet",
    ),
    "a volume": (
        {
            "patches": [
                patched(spec={"containers": [{"name": "node", "volumeMounts": [{"name": "no", "mountPath": "/"}]}]})
            ]
        },
        "mounts volume 'no'",
    ),
    "a container": ({"patches": [patched(spec={"containers": [{"name": "side"}]})]}, "have no 'side'; there are node"),
    "a workspace": ({"workspace": {}}, "only `initialize` fetches into a volume"),
}


@pytest.mark.parametrize("case", NO_PLACE)
def test_what_a_pytorchjob_has_no_place_for_is_refused_by_name(case):
    fields, complaint = NO_PLACE[case]
    with pytest.raises(UnsupportedError, match=complaint) as refused:
        rendered(a_request(**fields))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"trainer": {"env": {"RANK": "1", "PET_NNODES": "1"}}}, "must not set PET_NNODES, RANK"),
        ({"initializer": {"model": {"storage_uri": "pvc://a/../b"}}}, r"without '\.\.'"),
        ({"metadata": {"labels": {marks.OWNER: "x"}}}, "is written by this backend"),
        (
            {
                "runtime": TORCH,
                "trainer": {"num_nodes": 9},
                "pytorch_job": {"elastic_policy": {"minReplicas": 1, "maxReplicas": 4}},
            },
            "num_nodes=9 is not between minReplicas 1 and maxReplicas 4",
        ),
    ],
    ids=["the operator's variables", "a way out of a claim", "our labels", "too many nodes"],
)
def test_a_value_that_cannot_be_right_is_refused(fields, complaint):
    with pytest.raises(InvalidRequestError, match=complaint):
        rendered(a_request(**fields))


def test_a_runtime_of_a_folder_is_laid_under_the_request(tmp_path):
    raw = blueprints.get(None, "python")
    raw["metadata"]["name"] = "team"
    pod = raw["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["metadata"] = {"labels": {"team": "vision"}}
    pod["spec"]["containers"][0].update(env=[{"name": "A", "value": "1"}], command=["train"])
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    (tmp_path / "notes.yaml").write_text("{kind: Pod}", encoding="utf-8")

    request = TrainJobRequest.parse({"name": "job", "runtime": {"name": "team"}})
    runtime = blueprints.get(tmp_path, "team")
    admission.check(request, runtime)
    made = manifest.pytorch_job(request, runtime, CONFIG, "team")["spec"]["pytorchReplicaSpecs"]["Master"]["template"]

    (container,) = made["spec"]["containers"]
    assert (made["metadata"], container["command"]) == ({"labels": {"team": "vision"}}, ["train"])
    assert {entry["name"] for entry in container["env"]} == {"A", "TRAINJOB_NAME"}
    assert CONTAINER["image"] != container["image"]
