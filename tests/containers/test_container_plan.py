"""Plans of container jobs, and the create calls that follow from them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib

import pytest
from container_jobs import PACKAGED, build_job, build_plan, build_request, build_runtime

from trainer_core.backends.container import plan
from trainer_core.backends.container.paths import CODE_PATH
from trainer_core.backends.container.plan import CreateInputs
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.model.request import TrainJobRequest

INPUTS = CreateInputs("data", {}, {})


def nodes(**fields):
    raw = fields.pop("raw", None)
    return [step for step in build_plan(build_request(**fields), raw)["steps"] if step["kind"] == plan.NODE]


def node(**fields):
    return nodes(**fields)[0]


def patched(pod=None, **container):
    inner = {**(pod or {}), **({"containers": [{"name": "node", **container}]} if container else {})}
    spec_ = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": inner}}}}]}
    return {"manager": "trainer.kubeflow.org/kubeflow-sdk", "trainingRuntimeSpec": {"template": {"spec": spec_}}}


def build_body(step):
    return plan.build_create_request(build_job(), step, INPUTS)


def test_torch_nodes_use_the_first_node_for_the_rendezvous():
    env = [step["env"] for step in nodes(runtime={"name": "torch-distributed"}, trainer={"num_nodes": 2})]
    assert [each["PET_NODE_RANK"] for each in env] == ["0", "1"]
    assert {each["PET_MASTER_ADDR"] for each in env} == {"digits-node-0"}
    assert (env[0]["PET_NNODES"], env[0]["PET_NPROC_PER_NODE"], env[0]["PET_MASTER_PORT"]) == ("2", "1", "29500")


def test_nodes_without_a_launcher_have_a_rank():
    env = [step["env"] for step in nodes(trainer={"num_nodes": 3})]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in env] == [("0", "3"), ("1", "3"), ("2", "3")]


@pytest.mark.parametrize(
    ("asked", "processes"),
    [({}, "1"), ({"cpu": "2500m"}, "2"), ({"gpu": 4, "cpu": 32}, "4"), ({"cpu": "500m"}, "1")],
)
def test_torch_runs_a_process_for_each_gpu_or_whole_cpu(asked, processes):
    step = node(runtime={"name": "torch-distributed"}, trainer={"resources_per_node": asked})
    assert step["env"]["PET_NPROC_PER_NODE"] == processes


def test_resources_become_limits_of_the_container():
    step = node(trainer={"resources_per_node": {"cpu": "1500m", "memory": "2Gi", "gpu": 2}})
    limits = build_body(step)["HostConfig"]
    assert (limits["NanoCpus"], limits["Memory"]) == (1_500_000_000, 2 * 2**30)
    assert limits["DeviceRequests"] == [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]


def test_limits_of_the_runtime_are_used_for_resources_that_the_request_does_not_set():
    containers = [{"name": "node", "image": "i", "resources": {"limits": {"memory": "1Gi", "cpu": 4}}}]
    step = node(raw=build_runtime(containers=containers), trainer={"resources_per_node": {"cpu": 1}})
    assert (step["memory"], step["nano_cpus"]) == (2**30, 10**9)


def test_an_unsupported_resource_is_refused():
    with pytest.raises(UnsupportedError, match="google"):
        nodes(trainer={"resources_per_node": {"tpu": 4}})


def test_the_runtime_sets_the_size_of_the_shared_memory():
    step = node(runtime={"name": "torch-distributed"})
    assert build_body(step)["HostConfig"]["ShmSize"] == 4 * 2**30
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
    host = build_body(node(patches=[patched(pod, volumeMounts=mounts)]))["HostConfig"]
    assert host["Mounts"] == [
        {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
        {"Type": "volume", "Source": "datasets", "Target": "/data", "ReadOnly": False},
        {"Type": "volume", "Target": "/scratch", "ReadOnly": False},
    ]
    assert host["Tmpfs"] == {"/quick": f"size={2**30}"}


def test_user_and_capabilities_are_those_of_the_security_context():
    context = {"runAsUser": 1000, "runAsGroup": 100, "capabilities": {"add": ["IPC_LOCK"]}}
    job = build_body(node(patches=[patched(securityContext=context)]))
    assert (job["User"], job["HostConfig"]["CapAdd"]) == ("1000:100", ["IPC_LOCK"])


def test_the_environment_of_the_request_overrides_that_of_the_runtime():
    containers = [{"name": "node", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]
    env = node(raw=build_runtime(containers=containers), trainer={"env": {"B": "3"}})["env"]
    assert (env["A"], env["B"]) == ("1", "3")


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (patched({"nodeSelector": {"a": "b"}}), "nodeSelector"),
        (patched({"tolerations": []}), "tolerations"),
        (patched({"serviceAccountName": "x"}), "serviceAccountName"),
        (patched(securityContext={"privileged": True}), "privileged"),
        (
            patched(env=[{"name": "A", "valueFrom": {"secretKeyRef": {}}}]),
            "env A: secretKeyRef needs a Kubernetes",
        ),
        (
            patched({"volumes": [{"name": "v", "configMap": {}}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            "volume 'v': configMap needs a Kubernetes cluster",
        ),
    ],
)
def test_patch_fields_that_need_a_cluster_are_refused(patch, message):
    with pytest.raises(UnsupportedError, match=message):
        nodes(patches=[patch])


@pytest.mark.parametrize(("policy", "why"), [({"mpi": {}}, "mpirun over ssh"), ({"flux": {}}, "Flux brokers")])
def test_a_runtime_whose_launcher_needs_a_cluster_is_refused_with_the_reason(policy, why):
    raw = build_runtime()
    raw = {**raw, "spec": {**raw["spec"], "mlPolicy": policy}}
    with pytest.raises(UnsupportedError, match=why):
        nodes(raw=raw)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": {"env": {"PET_NNODES": "3"}}}, "PET_NNODES"),
        (
            {
                "trainer": {
                    "kind": "container",
                    "code": None,
                    "image": "a",
                    "env": {"KEY": {"name": "s3", "key": "key"}},
                }
            },
            "trainer.KEY: the container backend passes secrets to functions only",
        ),
        ({"trainer": {"num_proc_per_node": 2}}, "one process on each node"),
        ({"initializer": {"dataset": {"storage_uri": "cache://a/b"}}}, "cache://"),
        ({"initializer": {"dataset": {"storage_uri": "pvc://data/sub/folder"}}}, "complete volumes"),
        ({"initializer": {"model": {"storage_uri": "file:///m", "link": True, "ignore_patterns": ["*"]}}}, "link=True"),
    ],
)
def test_unsupported_requests_are_refused_in_one_line(fields, message):
    with pytest.raises((UnsupportedError, InvalidRequestError), match=message) as refused:
        build_plan(build_request(**fields))
    assert len(str(refused.value).splitlines()) == 1


def test_arguments_replace_those_of_the_image():
    asked = TrainJobRequest.parse(
        {"name": "digits", "trainer": {"kind": "container", "image": "train:1", "args": ["--epochs", "3"]}}
    )
    job = build_body(build_plan(asked, PACKAGED.get("python"))["steps"][0])
    assert (job["Image"], job["Cmd"]) == ("train:1", ["--epochs", "3"])
    assert "Entrypoint" not in job


def test_a_command_replaces_the_entry_point_and_drops_the_arguments_of_the_image():
    job = build_body({"name": "node-0", "kind": "node", "image": "i", "command": ["train"]})
    assert (job["Entrypoint"], job["Cmd"]) == (["train"], [])


def test_commands_are_stripped_from_a_plan_and_restored():
    asked = build_request(trainer={"num_nodes": 8})
    whole = build_plan(asked)
    kept = plan.strip_commands(whole)
    assert len(json.dumps(kept)) < 4000
    assert plan.restore_commands(json.loads(json.dumps(kept)), asked) == whole


def test_a_dataset_and_a_model_in_one_volume_share_a_mount():
    fetch = {"dataset": {"storage_uri": "pvc://fetched/dataset"}, "model": {"storage_uri": "pvc://fetched/model"}}
    mount = {"type": "volume", "source": "fetched", "target": "/workspace", "read_only": True}
    assert node(initializer=fetch)["mounts"] == [mount]


def test_credentials_are_in_neither_arguments_nor_environment_nor_labels():
    asked = build_request(initializer={"dataset": {"storage_uri": "hf://owner/data"}})
    asked = asked.with_fields(literal_secrets={"dataset.ACCESS_TOKEN": "hf_secret"})
    step = build_plan(asked)["steps"][0]
    job = plan.build_create_request(
        build_job(asked), step, CreateInputs("data", {}, {"Entrypoint": ["python", "-m", "fetch"], "Cmd": None})
    )
    assert "hf_secret" not in json.dumps([job, step])
    assert job["Cmd"] == ["python", "-m", "fetch"]
    assert plan.SECRETS_PATH in job["Entrypoint"][2]


@pytest.mark.parametrize(
    ("ignored", "variable"),
    [({}, None), ({"ignore_patterns": []}, ""), ({"ignore_patterns": ["*.bin", "x"]}, "*.bin,x")],
)
def test_an_initializer_gets_its_source_and_what_it_ignores(ignored, variable):
    source = {"storage_uri": "hf://org/data", "env": {"A": "1"}, **ignored}
    step = build_plan(build_request(initializer={"dataset": source}))["steps"][0]
    expected = {"A": "1", "STORAGE_URI": "hf://org/data", "IGNORE_PATTERNS": variable}
    assert step["env"] == {name: value for name, value in expected.items() if value is not None}


def test_the_programs_of_a_node_are_those_that_its_options_need(monkeypatch):
    seen = []
    monkeypatch.setattr(plan.argv_payload, "render_argv", lambda *_, **needs: seen.append(needs) or ["python"])
    node()
    options = {"checkpoints": {"uri": "s3://bucket/runs"}, "stalled": {"after": "20m"}}
    node(runtime={"name": "torch-distributed"}, trainer={"num_proc_per_node": 3}, **options)
    none = {"processes": None, "s3": False, "is_trial": False, "is_attended": False}
    assert seen == [none, {"processes": 3, "s3": True, "is_trial": False, "is_attended": True}]


def test_an_initializer_image_without_a_program_is_explained(tmp_path):
    secrets = tmp_path / "secrets.json"
    secrets.write_text("{}")
    program = plan._LOAD_SECRETS.replace(plan.SECRETS_PATH, str(secrets))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (1, plan._NO_COMMAND)


def test_more_processes_than_one_machine_runs_are_refused():
    with pytest.raises(UnsupportedError, match="use at most 1000 processes, or a backend on a cluster"):
        nodes(trainer={"num_nodes": 1001})


TRACKING_ENV = {"MLFLOW_TRACKING_URI": "https://mlflow.example", "MLFLOW_RUN_ID": "1"}
TRACKED = {"tracking": {"env": TRACKING_ENV}}


def with_token(asked):
    return asked.with_fields(literal_secrets={"trainer.MLFLOW_TRACKING_TOKEN": "hf_secret"})


def test_the_tracking_server_and_its_credentials_reach_the_node_of_a_function_by_a_file():
    asked = with_token(build_request(**TRACKED))
    step = build_plan(asked)["steps"][0]
    body = plan.build_create_request(build_job(asked), step, CreateInputs("data", {}, {}))

    assert "hf_secret" not in json.dumps([body, step])
    assert [each for each in body["Env"] if each.startswith("MLFLOW_")] == []
    assert plan.SECRETS_PATH in body["Entrypoint"][2]
    assert body["Cmd"] == step["command"]


def test_a_tracking_server_without_credentials_is_in_the_environment():
    step = build_plan(build_request(**TRACKED))["steps"][0]
    body = plan.build_create_request(build_job(build_request()), step, CreateInputs("data", {}, {}))

    assert {f"{name}={value}" for name, value in TRACKING_ENV.items()} <= set(body["Env"])
    assert body["Entrypoint"] == step["command"]


def test_the_image_of_a_user_gets_no_credentials_because_it_may_have_no_python():
    trainer = {"kind": "container", "image": "train:1", "code": None, "command": ["train"]}
    step = build_plan(with_token(build_request(trainer=trainer)))["steps"][0]

    assert "secrets" not in step


def test_checkpoints_are_in_a_volume_of_the_engine_or_in_a_folder():
    owner = {"key": "a", "slug": "train"}
    default = node(checkpoints={}, owner=owner)
    assert {"type": "volume", "source": "trainjob-checkpoints", "target": "/checkpoints"} in default["mounts"]
    assert default["env"]["TRAINJOB_CHECKPOINT_PATH"].startswith("/checkpoints/train-")

    step = node(checkpoints={"uri": "file:///data/runs", "load": "file:///data/runs/old"}, owner=owner)
    mounts = build_body(step)["HostConfig"]["Mounts"]
    assert {"Type": "bind", "Source": "/data/runs", "Target": "/checkpoints", "ReadOnly": False} in mounts
    assert json.loads(step["env"]["TRAINJOB_CHECKPOINTS"])["load_paths"] == ["/checkpoints/old"]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("pvc://other/runs", "is not on the same volume as"),
        ("file:///elsewhere", "is not below the folder /data/runs"),
    ],
)
def test_checkpoints_to_load_are_where_the_job_keeps_its_own(load, message):
    with pytest.raises(UnsupportedError, match=message):
        node(checkpoints={"uri": "file:///data/runs", "load": load})


@pytest.mark.parametrize(
    ("uri", "of_node"),
    [("file:///place/f.json.zlib", f"file://{CODE_PATH}"), ("s3://b/f.json.zlib", "s3://b/f.json.zlib")],
)
def test_a_node_reads_a_large_project_from_its_copy_or_from_the_bucket(uri, of_node):
    project = {"digest": "0" * 64, "files": 1, "size": 1, "uri": uri}
    code = {"kind": "reference", "text": "train:main", "entry": "main", "project": project}
    command = node(trainer={"code": code})["command"]
    sent = zlib.decompress(base64.b64decode("".join(command[4:]))).decode().split("\0")
    assert json.loads(sent[sent.index("payload.json") + 1])["project"]["uri"] == of_node
