"""Manifests of requests: golden files, validated with the CRDs and with Trainer's Python models.

After an intended change, update the golden files and review them::

    TRAINJOB_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/kubernetes/test_k8s_manifest.py -q
"""

from __future__ import annotations

import json

import pytest
from fake_cluster import crds
from hypothesis import given, strategies as st
from k8s_crds import VERSIONS, runtime, server
from k8s_examples import EXAMPLES, GOLDEN, golden, readable

from trainer_core.backends.trainer_v2 import manifest
from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import labels, manifest_common
from trainer_core.model.request import TrainJobRequest

TRAINJOBS = [name for name, example in EXAMPLES.items() if example.runtime]
SDK = "trainer.kubeflow.org/kubeflow-sdk"
HF = {"storage_uri": "hf://tatsu-lab/alpaca"}


def a_request(**fields):
    return TrainJobRequest.parse({"name": "job", "trainer": {"kind": "container", "image": "x:1"}, **fields})


@pytest.fixture
def models():
    """Trainer's Python models: 0.8 s for each process that imports them."""
    from kubeflow_trainer_api import models

    return models


def rendered(request, raw="torch-distributed", version="2.3", attempt=0):
    return manifest.render_trainjob(request, runtime(raw), server(version), "team", attempt)


def a_patch(manager=SDK, **pod):
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_to_its_golden_file(name):
    manifest_common = EXAMPLES[name].objects()
    assert golden(name, manifest_common) == readable(manifest_common)


def test_every_golden_file_has_an_example():
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", TRAINJOBS)
def test_the_crd_accepts_an_example(name):
    train_job, *_ = EXAMPLES[name].objects()
    assert crds.list_violations(train_job, EXAMPLES[name].version) == []


@pytest.mark.parametrize("name", [name for name in TRAINJOBS if EXAMPLES[name].version == "2.3"])
def test_the_trainer_models_accept_an_example(name, models):
    train_job, *_ = EXAMPLES[name].objects()
    assert models.TrainerV1alpha1TrainJob.from_dict(train_job).to_dict() == train_job


def test_the_kubernetes_models_accept_the_job_and_claim_of_an_initialize_only_request(models):
    claim, job, _ = EXAMPLES["initialize"].objects()
    assert models.IoK8sApiBatchV1JobSpec.from_dict(job["spec"]).to_dict() == job["spec"]
    assert models.IoK8sApiCoreV1PersistentVolumeClaimSpec.from_dict(claim["spec"]).to_dict() == claim["spec"]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].request().context.literal_secrets])
def test_a_literal_secret_is_rendered_only_into_its_secret(name):
    *others, secret = EXAMPLES[name].objects()
    assert "hf_literal" in json.dumps(secret)
    assert "hf_literal" not in json.dumps(others)


def test_secrets_of_dataset_and_model_have_separate_keys():
    request = a_request(
        initializer={"dataset": HF, "model": HF},
        literal_secrets={"dataset.ACCESS_TOKEN": "one", "model.ACCESS_TOKEN": "two"},
    )
    job = rendered(request, "torchtune-llama3.2-1b")
    initializer = job["spec"]["initializer"]
    job["metadata"]["uid"] = "uid"
    secret = manifest_common.build_secret(request, job)
    keys = {role: initializer[role]["env"][0]["valueFrom"]["secretKeyRef"]["key"] for role in ("dataset", "model")}
    assert {role: secret["stringData"][key] for role, key in keys.items()} == {"dataset": "one", "model": "two"}


def test_the_request_is_stored_in_an_annotation():
    request = a_request(metadata={"annotations": {"note": "any text"}})
    annotations = rendered(request, attempt=3)["metadata"]["annotations"]
    assert TrainJobRequest.from_json(annotations[labels.REQUEST]) == request
    assert annotations[labels.FINGERPRINT] == request.fingerprint()
    assert (annotations[labels.ATTEMPT], annotations["note"]) == ("3", "any text")


def test_a_request_over_the_size_limit_of_annotations_is_refused():
    request = a_request(trainer={"kind": "container", "image": "x:1", "args": ["x" * 100_000] * 3})
    with pytest.raises(UnsupportedError, match="has room for 180224, besides its outcome"):
        rendered(request)


def test_too_long_arguments_are_refused_with_their_path():
    request = a_request(trainer={"kind": "container", "image": "x:1", "args": ["x" * 70_000]})
    with pytest.raises(UnsupportedError, match=r"spec\.trainer\.args has a text of 70000 characters"):
        rendered(request, version="2.2")


def test_a_trainer_without_a_command_keeps_that_of_the_runtime():
    assert rendered(a_request())["spec"]["trainer"].keys() == {"image", "env"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("$HOME costs 5$", "$HOME costs 5$"),
        ("pa$$word", "pa$$$$word"),
        ("$(HOME) and $HOME", "$$(HOME) and $$HOME"),
    ],
)
def test_values_of_variables_are_escaped(given, sent):
    request = a_request(trainer={"kind": "container", "image": "x:1", "env": {"A": given}})
    assert rendered(request)["spec"]["trainer"]["env"][0] == {"name": "A", "value": sent}


def test_container_arguments_may_use_kubernetes_variable_references():
    request = a_request(trainer={"kind": "container", "image": "x:1", "args": ["--rank=$(PET_NODE_RANK)"]})
    assert rendered(request)["spec"]["trainer"]["args"] == ["--rank=$(PET_NODE_RANK)"]


def test_a_cache_uses_the_volume_of_the_runtime():
    raw = runtime("torch-distributed-with-cache")
    claim = {"metadata": {"name": "initializer"}, "spec": {}}
    raw["spec"]["template"]["spec"]["volumeClaimPolicies"] = [{"templates": [claim]}]
    request = a_request(initializer={"dataset": {"storage_uri": "cache://a/b"}})
    (patch,) = manifest.build_patches(request, raw, server("2.3"))
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert "volumes" not in job["template"]["spec"]["template"]["spec"]


def test_a_job_without_a_trainer_renders_an_empty_trainer():
    assert rendered(TrainJobRequest.parse({"name": "job"}))["spec"]["trainer"] == {}


def test_patches_of_other_managers_are_unchanged():
    other = a_patch("kueue.x-k8s.io/manager", nodeSelector={"zone": "a"})
    request = a_request(patches=[other], initializer={"dataset": {"storage_uri": "pvc://claim/x"}})
    first, second = rendered(request)["spec"]["runtimePatches"]
    assert first == other
    assert second["manager"] == SDK


def test_volumes_are_merged_into_the_patch_of_this_library():
    volumes = [{"name": "scratch", "emptyDir": {}}]
    request = a_request(
        patches=[a_patch(volumes=volumes, serviceAccountName="trainer")],
        initializer={"dataset": {"storage_uri": "pvc://claim/x"}},
    )
    (patch,) = rendered(request)["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["scratch", "trainjob-dataset"]
    assert pod["serviceAccountName"] == "trainer"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_trainer_version_supports_pvc_sources(version):
    request = a_request(initializer={"dataset": {"storage_uri": "pvc://claim/x"}})
    assert crds.list_violations(rendered(request, version=version), version) == []


def test_rendering_does_not_change_its_input():
    request = a_request(patches=[a_patch(volumes=[])], initializer={"model": {"storage_uri": "pvc://claim/x"}})
    before = request.to_json()
    assert rendered(request) == rendered(request)
    assert request.to_json() == before


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,10}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SECRETS = st.fixed_dictionaries({"name": st.just("minio"), "key": NAMES})
COMMON = {
    "num_nodes": st.integers(1, 100),
    "num_proc_per_node": st.integers(1, 8),
    "env": st.dictionaries(NAMES, TEXTS | SECRETS, max_size=3),
    "resources_per_node": st.sampled_from([{"gpu": 2, "cpu": "500m"}, {"memory": "4Gi", "cpu": 1.5}]),
}
CODE = {"kind": "source", "text": "def train(**_): pass\n", "entry": "train"}
TRAINERS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("container"), "image": st.just("x:1")},
        optional={**COMMON, "args": st.lists(TEXTS, max_size=3), "command": st.lists(TEXTS, min_size=1, max_size=3)},
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("custom"),
            "code": st.dictionaries(NAMES, TEXTS | st.integers(), max_size=3).map(lambda args: {**CODE, "args": args}),
        },
        optional={**COMMON, "packages": st.just(["scikit-learn"]), "result_uri": st.just("file:///result.json")},
    ),
)
SOURCES = st.fixed_dictionaries(
    {"storage_uri": st.sampled_from(["hf://owner/name", "s3://bucket/key", "pvc://claim/path"])},
    optional={
        "ignore_patterns": st.lists(NAMES, max_size=3),
        "env": st.dictionaries(NAMES, TEXTS, max_size=3),
        "secrets": st.dictionaries(NAMES, SECRETS, max_size=2),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"name": st.just("job")},
    optional={
        "trainer": TRAINERS,
        "owner": st.fixed_dictionaries({"key": TEXTS.filter(bool)}),
        "initializer": st.fixed_dictionaries({}, optional={"dataset": SOURCES, "model": SOURCES}),
        "metadata": st.fixed_dictionaries({"labels": st.dictionaries(NAMES, NAMES, max_size=2)}),
        "patches": st.just([a_patch(nodeSelector={"zone": "a"}, volumes=[{"name": "scratch", "emptyDir": {}}])]),
        "active_deadline_seconds": st.integers(1, 10**6),
        "delete_after_seconds": st.integers(1, 10**6),
        "suspend": st.booleans(),
    },
).map(TrainJobRequest.parse)


@given(REQUESTS, st.sampled_from(["torch-distributed", "deepspeed-distributed", "jax-distributed"]))
def test_the_manifest_is_a_function_of_the_request_json(request, raw):
    made = rendered(request, raw)
    assert made == rendered(TrainJobRequest.from_json(request.to_json()), raw)
    assert crds.list_violations(made, "2.3") == []
