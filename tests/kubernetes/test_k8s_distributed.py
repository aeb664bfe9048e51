"""Rendering of a DistributedConfig as a TrainJob, and refusal of the fields that TrainJob lacks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fake_cluster import crds
from k8s_crds import VERSIONS, runtime, server
from k8s_scene import CONTAINER, a_request, a_stage

from trainer_core import CustomTrainer, DistributedConfig, Labels, Name
from trainer_core.backends.trainer_v2 import manifest, validation
from trainer_core.backends.trainer_v2.backend import KubernetesBackend
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.definition import request_builder
from trainer_core.definition.options import (
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    RuntimePatch,
    TrainingRuntimeSpecPatch,
)
from trainer_core.k8s import labels
from trainer_core.model.request import TrainJobRequest
from trainer_core.testing.training_functions import return_env

POD_IP = {"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
ADDRESS = {"name": "ADDRESS", "value": "$(MY_POD_IP):29500"}
TOLERATION = {"key": "gpu", "operator": "Exists"}
AFFINITY = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
FUNCTION = {"kind": "custom", "code": {"kind": "source", "text": "def train(): pass\n", "entry": "train"}}


def a_config(trainer=CONTAINER, options=(), **fields):
    """Return the request with a DistributedConfig."""
    data = request_builder.build_request_data(
        backend=KubernetesBackend, options=[DistributedConfig(**fields), *options]
    )
    return TrainJobRequest.parse({"name": "job", **({"trainer": trainer} if trainer else {}), **data})


def spec_of(request, raw="torch-distributed", version="2.3"):
    raw = runtime(raw) if isinstance(raw, str) else raw
    validation.check_request(request, raw, server(version), "team")
    made = manifest.render_trainjob(request, raw, server(version), "team")
    assert crds.list_violations(made, version) == []
    return made["spec"]


def pods_of(spec):
    """Return the patched pod templates by replicated job."""
    (patch,) = spec["runtimePatches"]
    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return {job["name"]: job["template"]["spec"]["template"] for job in jobs}


def with_a_sidecar(name="torch-distributed"):
    raw = runtime(name)
    (job,) = raw["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"].append({"name": "logger", "image": "logger:1"})
    return raw


def on_node(pod):
    job = ReplicatedJobPatch("node", JobTemplatePatch(spec=JobSpecPatch(PodTemplatePatch(spec=pod))))
    return RuntimePatch(TrainingRuntimeSpecPatch(JobSetTemplatePatch(spec=JobSetSpecPatch([job]))))


def test_env_follows_that_of_the_trainer_in_its_original_order():
    spec = spec_of(a_config({**CONTAINER, "env": {"A": "b"}}, env=[POD_IP, ADDRESS]))
    assert spec["trainer"]["env"][-2:] == [POD_IP, ADDRESS]
    assert {"name": "A", "value": "b"} in spec["trainer"]["env"][:-2]


def test_env_is_set_in_every_container_of_a_node():
    spec = spec_of(a_config(env=[POD_IP]), with_a_sidecar())
    assert pods_of(spec)["node"]["spec"]["containers"] == [{"name": "logger", "env": [POD_IP]}]


def test_a_variable_that_the_trainer_also_sets_is_refused():
    with pytest.raises(UnsupportedError, match=r"spec\.trainer\.env has two entries with name 'A'"):
        spec_of(a_config({**CONTAINER, "env": {"A": "b"}}, env=[{"name": "A", "value": "c"}]))


def test_a_variable_that_the_controller_sets_is_refused():
    with pytest.raises(InvalidRequestError, match="must not set PET_NNODES"):
        spec_of(a_config(env=[{"name": "PET_NNODES", "value": "2"}]))


def test_requests_and_limits_apply_to_each_node():
    spec = spec_of(a_config(requests={"cpu": "500m"}, limits={"cpu": 2, "gpu": 1}))
    assert spec["trainer"]["resourcesPerNode"] == {
        "requests": {"cpu": "500m"},
        "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
    }


def test_requests_without_limits_set_no_limits():
    assert spec_of(a_config(requests={"cpu": 1}))["trainer"]["resourcesPerNode"] == {"requests": {"cpu": "1"}}


def test_resources_that_the_trainer_also_sets_are_refused():
    with pytest.raises(UnsupportedError, match=r"requests and limits .* resources_per_node; set only one of them"):
        spec_of(a_config({**CONTAINER, "resources_per_node": {"cpu": 1}}, limits={"cpu": 2}))


def test_metadata_and_scheduling_apply_to_the_pods():
    spec = spec_of(
        a_config(
            labels={"team": "vision"},
            annotations={"note": "any text"},
            node_selector={"gpu": "h100"},
            affinity=AFFINITY,
            tolerations=[TOLERATION],
        )
    )
    assert pods_of(spec) == {
        "node": {
            "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "any text"}},
            "spec": {"nodeSelector": {"gpu": "h100"}, "affinity": AFFINITY, "tolerations": [TOLERATION]},
        }
    }


def test_with_mpi_metadata_and_scheduling_apply_to_launcher_and_nodes():
    spec = spec_of(a_config(FUNCTION, node_selector={"gpu": "h100"}), "deepspeed-distributed")
    assert pods_of(spec) == {name: {"spec": {"nodeSelector": {"gpu": "h100"}}} for name in ("launcher", "node")}


def test_with_mpi_the_launcher_exports_env_to_the_nodes():
    spec = spec_of(a_config(FUNCTION, env=[{"name": "A", "value": "b"}]), "deepspeed-distributed")
    command = spec["trainer"]["command"]
    assert ("-x", "A") in pairwise(command)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": FUNCTION, "env": [POD_IP]}, "env MY_POD_IP: .* only (in|to) the launcher"),
        ({"env": [{"name": "A", "value": "b"}]}, "env A: .* only (in|to) the launcher"),
        ({"limits": {"cpu": 1}}, "requests and limits: .* only (in|to) the launcher"),
    ],
)
def test_with_mpi_fields_that_only_reach_the_launcher_are_refused(fields, message):
    with pytest.raises(UnsupportedError, match=message):
        spec_of(a_config(**fields), "deepspeed-distributed")


def test_a_runtime_patch_is_merged_over_distributed_config():
    more = on_node(PodSpecPatch(node_selector={"gpu": "a100"}, service_account_name="trainer"))
    spec = spec_of(a_config(options=[more], node_selector={"gpu": "h100", "zone": "b"}))
    assert pods_of(spec)["node"]["spec"] == {
        "nodeSelector": {"gpu": "a100", "zone": "b"},
        "serviceAccountName": "trainer",
    }


def test_distributed_config_is_accepted_without_a_trainer():
    spec = spec_of(a_config(None, env=[POD_IP], limits={"cpu": 1}))
    assert spec["trainer"] == {"env": [POD_IP], "resourcesPerNode": {"limits": {"cpu": "1"}}}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_each_trainer_version_with_pod_overrides_accepts_distributed_config(version):
    assert spec_of(a_config(tolerations=[TOLERATION], labels={"team": "vision"}), version=version)


def test_pod_labels_are_refused_on_a_version_without_pod_metadata():
    with pytest.raises(UnsupportedError, match=r"node\].*metadata"):
        spec_of(a_config(labels={"team": "vision"}), version="2.0")


def test_supported_run_policy_fields_are_rendered():
    policy = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 300, "suspend": True, "cleanPodPolicy": "Running"}
    made = manifest.render_trainjob(a_config(run_policy=policy), runtime("torch-distributed"), server(), "team")
    assert (made["spec"]["activeDeadlineSeconds"], made["spec"]["suspend"]) == (60, True)
    assert made["metadata"]["labels"][labels.DELETE_AFTER] == "300"


def test_clean_pod_policy_is_accepted_with_a_ttl():
    assert spec_of(a_config(run_policy={"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 300}))


def test_the_scheduling_queue_becomes_the_volcano_queue():
    raw = runtime("torch-distributed")
    raw["spec"]["podGroupPolicy"] = {"volcano": {}}
    (patch,) = spec_of(a_config(run_policy={"schedulingPolicy": {"queue": "night"}}), raw)["runtimePatches"]
    assert patch["trainingRuntimeSpec"]["template"] == {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "night"}}
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_from": [{"secretRef": {"name": "hub"}}]}, "env_from .* valueFrom.secretKeyRef"),
        (
            {"run_policy": {"backoffLimit": 3}},
            "run_policy.backoffLimit is not supported by TrainJob: use the retries of the orchestrator",
        ),
        ({"run_policy": {"cleanPodPolicy": "All"}}, "run_policy.cleanPodPolicy: .* also set ttlSecondsAfterFinished"),
        ({"run_policy": {"schedulingPolicy": {"minAvailable": 2}}}, "run_policy.schedulingPolicy.minAvailable is no"),
        ({"run_policy": {"schedulingPolicy": {"minResources": {"cpu": 1}}}}, "minResources is not supported"),
        ({"run_policy": {"schedulingPolicy": {"priorityClass": "high"}}}, "priorityClass .* option PriorityClass"),
        (
            {"run_policy": {"schedulingPolicy": {"scheduleTimeoutSeconds": 5}}},
            "Seconds is .*coscheduling",
        ),
        ({"run_policy": {"schedulingPolicy": {"queue": "night"}}}, "has no podGroupPolicy.volcano"),
    ],
)
def test_fields_that_trainjob_lacks_are_refused_with_an_alternative(fields, message):
    with pytest.raises(UnsupportedError, match=message) as refused:
        spec_of(a_config(**fields))
    assert len(str(refused.value).splitlines()) == 1


def test_gpus_of_distributed_config_are_counted():
    recipe = {"kind": "builtin", "config": {"peft_config": {"quantize_base": True}}}
    assert spec_of(a_config(recipe, limits={"gpu": 1}), "torchtune-llama3.2-1b")


def test_distributed_config_is_refused_in_an_initialize_only_request():
    fetches = {"name": "job", "initializer": {"model": {"storage_uri": "hf://a/b"}}, "distributed": {}}
    with (
        a_stage() as (_, client),
        pytest.raises(UnsupportedError, match="DistributedConfig is not supported in an initialize-only request"),
    ):
        client.submit(TrainJobRequest.parse(fetches))


def test_training_reads_env_and_the_request_is_restored_from_the_job():
    with a_stage(delay=0.005) as (cluster, client):
        config = DistributedConfig(env=[{"name": "SETTING", "value": "b"}], labels={"team": "vision"})
        trainer = CustomTrainer(func=return_env, func_args={"name": "SETTING"})
        request = client.build_request(
            runtime="python", trainer=trainer, options=[Name("job"), config, Labels({"a": "b"})]
        )
        ref = client.submit(request)
        assert client.wait(ref, timeout=300).result == "b"
        assert client.get_job_request(ref) == request
        (pod,) = cluster.objects("Pod")
        assert pod["metadata"]["labels"]["team"] == "vision"


def test_submitting_distributed_config_twice_attaches_to_the_job():
    request = a_request(distributed={"env": [POD_IP]}, runtime="python")
    with a_stage("runs") as (_, client):
        assert client.submit(request) == client.submit(request)
