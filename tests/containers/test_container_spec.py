"""request + runtime → what containers are made of."""

from __future__ import annotations

import json

import pytest
from container_jobs import PACKAGED, job, plan, request, runtime

from trainer_core.backends.container import body, spec
from trainer_core.backends.container.body import Places
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.request import TrainJobRequest

NOWHERE = Places("data", {}, {})


def nodes(**fields):
    raw = fields.pop("raw", None)
    return [step for step in plan(request(**fields), raw)["steps"] if step["kind"] == spec.NODE]


def node(**fields):
    return nodes(**fields)[0]


def patched(pod=None, **container):
    inner = {**(pod or {}), **({"containers": [{"name": "node", **container}]} if container else {})}
    spec_ = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": inner}}}}]}
    return {"manager": "trainer.kubeflow.org/kubeflow-sdk", "trainingRuntimeSpec": {"template": {"spec": spec_}}}


def created(step):
    return body.create(job(), step, NOWHERE)


def test_torch_nodes_meet_at_the_first_of_them():
    env = [step["env"] for step in nodes(runtime={"name": "torch-distributed"}, trainer={"num_nodes": 2})]
    assert [each["PET_NODE_RANK"] for each in env] == ["0", "1"]
    assert {each["PET_MASTER_ADDR"] for each in env} == {"digits-node-0"}
    assert (env[0]["PET_NNODES"], env[0]["PET_NPROC_PER_NODE"], env[0]["PET_MASTER_PORT"]) == ("2", "1", "29500")


def test_plain_nodes_are_numbered():
    env = [step["env"] for step in nodes(trainer={"num_nodes": 3})]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in env] == [("0", "3"), ("1", "3"), ("2", "3")]


@pytest.mark.parametrize(
    ("asked", "processes"),
    [({}, "1"), ({"cpu": "2500m"}, "2"), ({"gpu": 4, "cpu": 32}, "4"), ({"cpu": "500m"}, "1")],
)
def test_torch_runs_a_process_for_each_gpu_or_whole_cpu(asked, processes):
    step = node(runtime={"name": "torch-distributed"}, trainer={"resources_per_node": asked})
    assert step["env"]["PET_NPROC_PER_NODE"] == processes


def test_limits_are_the_engines():
    step = node(trainer={"resources_per_node": {"cpu": "1500m", "memory": "2Gi", "gpu": 2}})
    limits = created(step)["HostConfig"]
    assert (limits["NanoCpus"], limits["Memory"]) == (1_500_000_000, 2 * 2**30)
    assert limits["DeviceRequests"] == [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]


def test_limits_of_the_runtime_count_where_the_request_is_silent():
    containers = [{"name": "node", "image": "i", "resources": {"limits": {"memory": "1Gi", "cpu": 4}}}]
    step = node(raw=runtime(containers=containers), trainer={"resources_per_node": {"cpu": 1}})
    assert (step["memory"], step["nano_cpus"]) == (2**30, 10**9)


def test_a_resource_that_an_engine_cannot_give_is_refused():
    with pytest.raises(UnsupportedError, match="google"):
        nodes(trainer={"resources_per_node": {"tpu": 4}})


def test_shared_memory_is_as_large_as_the_runtime_says():
    step = node(runtime={"name": "torch-distributed"})
    assert created(step)["HostConfig"]["ShmSize"] == 4 * 2**30
    assert step["mounts"] == []


def test_volumes_of_a_patch_are_mounted():
    pod = {
        "volumes": [
            {"name": "models", "hostPath": {"path": "/srv/models"}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": "datasets"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "quick", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ]
    }
    mounts = [
        {"name": "models", "mountPath": "/models", "readOnly": True},
        {"name": "shared", "mountPath": "/data"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "quick", "mountPath": "/quick"},
    ]
    host = created(node(patches=[patched(pod, volumeMounts=mounts)]))["HostConfig"]
    assert host["Mounts"] == [
        {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
        {"Type": "volume", "Source": "datasets", "Target": "/data", "ReadOnly": False},
        {"Type": "volume", "Target": "/scratch", "ReadOnly": False},
    ]
    assert host["Tmpfs"] == {"/quick": f"size={2**30}"}


def test_user_and_capabilities_are_those_of_the_security_context():
    context = {"runAsUser": 1000, "runAsGroup": 100, "capabilities": {"add": ["IPC_LOCK"]}}
    made = created(node(patches=[patched(securityContext=context)]))
    assert (made["User"], made["HostConfig"]["CapAdd"]) == ("1000:100", ["IPC_LOCK"])


def test_environment_of_the_request_counts_before_the_runtimes():
    containers = [{"name": "node", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]
    env = node(raw=runtime(containers=containers), trainer={"env": {"B": "3"}})["env"]
    assert (env["A"], env["B"]) == ("1", "3")


@pytest.mark.parametrize(
    ("patch", "complaint"),
    [
        (patched({"nodeSelector": {"a": "b"}}), "nodeSelector"),
        (patched({"tolerations": []}), "tolerations"),
        (patched({"serviceAccountName": "x"}), "serviceAccountName"),
        (patched(securityContext={"privileged": True}), "privileged"),
        (patched(env=[{"name": "A", "valueFrom": {"secretKeyRef": {}}}]), "env A comes from secretKeyRef"),
        (
            patched({"volumes": [{"name": "v", "configMap": {}}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            "volume 'v' is a configMap",
        ),
    ],
)
def test_what_only_a_cluster_has_is_refused(patch, complaint):
    with pytest.raises(UnsupportedError, match=complaint):
        nodes(patches=[patch])


@pytest.mark.parametrize(("policy", "why"), [({"mpi": {}}, "mpirun over ssh"), ({"flux": {}}, "brokers of Flux")])
def test_a_runtime_whose_launcher_needs_a_cluster_is_refused_with_the_reason(policy, why):
    raw = runtime()
    raw = {**raw, "spec": {**raw["spec"], "mlPolicy": policy}}
    with pytest.raises(UnsupportedError, match=why):
        nodes(raw=raw)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"trainer": {"env": {"PET_NNODES": "3"}}}, "PET_NNODES"),
        ({"trainer": {"env": {"TOKEN": {"name": "hub", "key": "token"}}}}, "SecretRef"),
        ({"trainer": {"num_proc_per_node": 2}}, "one process for each node"),
        ({"initializer": {"dataset": {"storage_uri": "cache://a/b"}}}, "cache://"),
        ({"initializer": {"dataset": {"storage_uri": "pvc://data/sub/folder"}}}, "whole volumes"),
        ({"initializer": {"model": {"storage_uri": "file:///m", "link": True, "ignore_patterns": ["*"]}}}, "link=True"),
    ],
)
def test_what_cannot_be_had_is_refused(fields, complaint):
    with pytest.raises((UnsupportedError, InvalidRequestError), match=complaint) as refused:
        plan(request(**fields))
    assert len(str(refused.value).splitlines()) == 1


def test_a_container_runs_its_own_command_with_the_users_arguments():
    asked = TrainJobRequest.parse(
        {"name": "digits", "trainer": {"kind": "container", "image": "train:1", "args": ["--epochs", "3"]}}
    )
    made = created(plan(asked, PACKAGED.get("python"))["steps"][0])
    assert (made["Image"], made["Cmd"]) == ("train:1", ["--epochs", "3"])
    assert "Entrypoint" not in made


def test_a_command_replaces_the_entry_point_of_the_image_and_drops_its_arguments():
    made = created({"name": "node-0", "kind": "node", "image": "i", "command": ["train"]})
    assert (made["Entrypoint"], made["Cmd"]) == (["train"], [])


def test_labels_keep_a_plan_without_what_travels_and_it_is_found_again():
    asked = request(trainer={"num_nodes": 8})
    whole = plan(asked)
    kept = spec.lean(whole)
    assert len(json.dumps(kept)) < 4000
    assert spec.whole(json.loads(json.dumps(kept)), asked) == whole


def test_a_dataset_and_a_model_in_one_volume_are_one_mount():
    fetch = {"dataset": {"storage_uri": "pvc://fetched/dataset"}, "model": {"storage_uri": "pvc://fetched/model"}}
    mount = {"type": "volume", "source": "fetched", "target": "/workspace", "read_only": True}
    assert node(initializer=fetch)["mounts"] == [mount]


def test_credentials_are_neither_arguments_nor_environment_nor_labels():
    asked = request(initializer={"dataset": {"storage_uri": "hf://owner/data"}})
    asked = asked.model_copy(update={"literal_secrets": {"dataset.ACCESS_TOKEN": "hf_secret"}})
    step = plan(asked)["steps"][0]
    made = body.create(job(asked), step, Places("data", {}, {"Entrypoint": ["python", "-m", "fetch"], "Cmd": None}))
    assert "hf_secret" not in json.dumps([made, step])
    assert made["Cmd"] == ["python", "-m", "fetch"]
    assert body.SECRETS in made["Entrypoint"][2]
