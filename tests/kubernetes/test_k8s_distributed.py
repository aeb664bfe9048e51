"""A DistributedConfig on Trainer: what of it a TrainJob says, on every node alike, and what is refused by its name."""

from __future__ import annotations

from itertools import pairwise

import pytest
from k8s_crds import VERSIONS, needs_crds, problems, runtime, server
from k8s_scene import CONTAINER, a_request, a_stage

from trainer_core import CustomTrainer, DistributedConfig, Labels, Name, build
from trainer_core.backends.kubernetes import admission, manifest
from trainer_core.backends.kubernetes.backend import KubernetesBackend
from trainer_core.cluster import marks
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.options import (
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
from trainer_core.request import TrainJobRequest
from trainer_core.testing.functions import returns_setting

pytestmark = needs_crds

POD_IP = {"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
ADDRESS = {"name": "ADDRESS", "value": "$(MY_POD_IP):29500"}
TOLERATION = {"key": "gpu", "operator": "Exists"}
AFFINITY = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
FUNCTION = {"kind": "custom", "code": {"kind": "source", "text": "def train(): pass\n", "entry": "train"}}


def a_config(trainer=CONTAINER, options=(), **fields):
    """The request that a user's DistributedConfig makes."""
    data = build.plain(backend=KubernetesBackend, options=[DistributedConfig(**fields), *options])
    return TrainJobRequest.parse({"name": "job", **({"trainer": trainer} if trainer else {}), **data})


def spec_of(request, raw="torch-distributed", version="2.3"):
    raw = runtime(raw) if isinstance(raw, str) else raw
    admission.check(request, raw, server(version), "team")
    made = manifest.trainjob(request, raw, server(version), "team")
    assert problems(made, version) == []
    return made["spec"]


def pods_of(spec):
    """The patched pod templates by the name of their job."""
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


def test_variables_come_after_those_of_the_trainer_as_they_were_written():
    spec = spec_of(a_config({**CONTAINER, "env": {"A": "b"}}, env=[POD_IP, ADDRESS]))
    assert spec["trainer"]["env"][-2:] == [POD_IP, ADDRESS]
    assert {"name": "A", "value": "b"} in spec["trainer"]["env"][:-2]


def test_every_other_container_of_a_node_has_the_variables_too():
    spec = spec_of(a_config(env=[POD_IP]), with_a_sidecar())
    assert pods_of(spec)["node"]["spec"]["containers"] == [{"name": "logger", "env": [POD_IP]}]


def test_a_variable_that_the_trainer_has_as_well_is_refused():
    with pytest.raises(UnsupportedError, match=r"spec\.trainer\.env has name 'A' twice"):
        spec_of(a_config({**CONTAINER, "env": {"A": "b"}}, env=[{"name": "A", "value": "c"}]))


def test_a_variable_that_the_controller_sets_is_refused():
    with pytest.raises(InvalidRequestError, match="must not set PET_NNODES"):
        spec_of(a_config(env=[{"name": "PET_NNODES", "value": "2"}]))


def test_requests_and_limits_are_those_of_each_node():
    spec = spec_of(a_config(requests={"cpu": "500m"}, limits={"cpu": 2, "gpu": 1}))
    assert spec["trainer"]["resourcesPerNode"] == {
        "requests": {"cpu": "500m"},
        "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
    }


def test_requests_alone_set_no_limits():
    assert spec_of(a_config(requests={"cpu": 1}))["trainer"]["resourcesPerNode"] == {"requests": {"cpu": "1"}}


def test_resources_that_the_trainer_names_as_well_are_refused():
    with pytest.raises(UnsupportedError, match=r"requests and limits .* resources_per_node .* give one of them"):
        spec_of(a_config({**CONTAINER, "resources_per_node": {"cpu": 1}}, limits={"cpu": 2}))


def test_pods_have_its_metadata_and_places():
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


def test_with_mpi_the_launcher_and_the_nodes_have_them():
    spec = spec_of(a_config(FUNCTION, node_selector={"gpu": "h100"}), "deepspeed-distributed")
    assert pods_of(spec) == {name: {"spec": {"nodeSelector": {"gpu": "h100"}}} for name in ("launcher", "node")}


def test_with_mpi_the_launcher_hands_variables_on():
    spec = spec_of(a_config(FUNCTION, env=[{"name": "A", "value": "b"}]), "deepspeed-distributed")
    command = spec["trainer"]["command"]
    assert ("-x", "A") in pairwise(command)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": FUNCTION, "env": [POD_IP]}, "env MY_POD_IP: .* only the launcher"),
        ({"env": [{"name": "A", "value": "b"}]}, "env A: .* only the launcher"),
        ({"limits": {"cpu": 1}}, "requests and limits: .* only the launcher"),
    ],
)
def test_with_mpi_what_would_reach_the_launcher_only_is_refused(fields, message):
    with pytest.raises(UnsupportedError, match=message):
        spec_of(a_config(**fields), "deepspeed-distributed")


def test_a_runtime_patch_says_more_of_the_same_pods_and_has_the_last_word():
    more = on_node(PodSpecPatch(node_selector={"gpu": "a100"}, service_account_name="trainer"))
    spec = spec_of(a_config(options=[more], node_selector={"gpu": "h100", "zone": "b"}))
    assert pods_of(spec)["node"]["spec"] == {
        "nodeSelector": {"gpu": "a100", "zone": "b"},
        "serviceAccountName": "trainer",
    }


def test_a_runtime_that_is_run_as_it_is_takes_it_as_well():
    spec = spec_of(a_config(None, env=[POD_IP], limits={"cpu": 1}))
    assert spec["trainer"] == {"env": [POD_IP], "resourcesPerNode": {"limits": {"cpu": "1"}}}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_every_trainer_that_can_patch_pods_takes_it(version):
    assert spec_of(a_config(tolerations=[TOLERATION], labels={"team": "vision"}), version=version)


def test_a_trainer_that_cannot_change_labels_of_pods_refuses_them():
    with pytest.raises(UnsupportedError, match=r"node\].*metadata"):
        spec_of(a_config(labels={"team": "vision"}), version="2.0")


def test_a_run_policy_that_trainer_can_keep_is_kept():
    policy = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 300, "suspend": True, "cleanPodPolicy": "Running"}
    made = manifest.trainjob(a_config(run_policy=policy), runtime("torch-distributed"), server(), "team")
    assert (made["spec"]["activeDeadlineSeconds"], made["spec"]["suspend"]) == (60, True)
    assert made["metadata"]["labels"][marks.DELETE_AFTER] == "300"


def test_pods_that_are_to_go_go_with_a_job_that_is_deleted_after_its_end():
    assert spec_of(a_config(run_policy={"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 300}))


def test_a_queue_of_volcano_is_that_of_the_gang():
    raw = runtime("torch-distributed")
    raw["spec"]["podGroupPolicy"] = {"volcano": {}}
    (patch,) = spec_of(a_config(run_policy={"schedulingPolicy": {"queue": "night"}}), raw)["runtimePatches"]
    assert patch["trainingRuntimeSpec"]["template"] == {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "night"}}
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_from": [{"secretRef": {"name": "hub"}}]}, "env_from: .* valueFrom.secretKeyRef"),
        ({"run_policy": {"backoffLimit": 3}}, "run_policy.backoffLimit is no part of a TrainJob: let the orchestrator"),
        ({"run_policy": {"cleanPodPolicy": "All"}}, "run_policy.cleanPodPolicy: .* give ttlSecondsAfterFinished"),
        ({"run_policy": {"schedulingPolicy": {"minAvailable": 2}}}, "run_policy.schedulingPolicy.minAvailable is no"),
        ({"run_policy": {"schedulingPolicy": {"minResources": {"cpu": 1}}}}, "minResources is no part"),
        ({"run_policy": {"schedulingPolicy": {"priorityClass": "high"}}}, "priorityClass .* option PriorityClass"),
        (
            {"run_policy": {"schedulingPolicy": {"scheduleTimeoutSeconds": 5}}},
            "Seconds is .*coscheduling",
        ),
        ({"run_policy": {"schedulingPolicy": {"queue": "night"}}}, "has no podGroupPolicy volcano"),
    ],
)
def test_what_a_trainjob_has_no_words_for_is_refused_with_what_to_do(fields, message):
    with pytest.raises(UnsupportedError, match=message) as refused:
        spec_of(a_config(**fields))
    assert len(str(refused.value).splitlines()) == 1


def test_the_gpus_that_it_asks_for_count():
    recipe = {"kind": "builtin", "config": {"peft_config": {"quantize_base": True}}}
    assert spec_of(a_config(recipe, limits={"gpu": 1}), "torchtune-llama3.2-1b")


def test_what_only_fetches_has_no_nodes_to_configure():
    fetches = {"name": "job", "initializer": {"model": {"storage_uri": "hf://a/b"}}, "distributed": {}}
    with a_stage() as (_, client), pytest.raises(UnsupportedError, match="DistributedConfig is about nodes"):
        client.submit(TrainJobRequest.parse(fetches))


def test_a_training_reads_its_variables_and_the_request_comes_back_whole():
    with a_stage(delay=0.005) as (cluster, client):
        config = DistributedConfig(env=[{"name": "SETTING", "value": "b"}], labels={"team": "vision"})
        trainer = CustomTrainer(func=returns_setting, func_args={"name": "SETTING"})
        request = client.request(runtime="python", trainer=trainer, options=[Name("job"), config, Labels({"a": "b"})])
        ref = client.submit(request)
        assert client.wait(ref, timeout=60).result == "b"
        assert client.backend.request(ref) == request
        (pod,) = cluster.objects("Pod")
        assert pod["metadata"]["labels"]["team"] == "vision"


def test_submitting_it_again_gives_the_same_job():
    request = a_request(distributed={"env": [POD_IP]}, runtime="python")
    with a_stage("runs") as (_, client):
        assert client.submit(request) == client.submit(request)
