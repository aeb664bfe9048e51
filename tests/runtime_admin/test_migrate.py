"""Migration of typical PyTorchJobs: Trainer accepts the TrainJobs, and notes name each difference."""

from __future__ import annotations

import copy

import pytest
import yaml
from fake_cluster import Cluster
from fake_cluster.raw_client import RawClient

from trainer_core import DistributedConfig, Name
from trainer_core.backends.training_operator import config as configs, manifest, runtime_templates
from trainer_core.backends.training_operator.backend import TrainingOperatorBackend
from trainer_core.backends.training_operator.migrate import convert_command, iterate_pytorch_jobs, migrate_pytorch_job
from trainer_core.base.errors import InvalidRequestError
from trainer_core.definition import request_builder
from trainer_core.definition.trainers import CustomTrainerContainer
from trainer_core.runtime_admin.validate import validate_runtime

#: The operator's first example: two nodes on CPUs.
ON_CPUS = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: pytorch-simple
  namespace: kubeflow
spec:
  pytorchReplicaSpecs:
    Master: &node
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: docker.io/example/pytorch-mnist:1
              command: [python3, -u, /opt/mnist.py, --epochs=1]
    Worker: *node
"""
#: Nodes that come and go, as in the operator's examples of elastic training.
ELASTIC = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: elastic-imagenet}
spec:
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: 1
    maxReplicas: 2
    maxRestarts: 100
    metrics:
      - type: Resource
        resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: example/imagenet:1
              command: [python, -m, torch.distributed.run, /workspace/imagenet.py]
              args: [--epochs, "10", --rdzv-id, $(PET_RDZV_ID)]
"""
#: Two machines of eight GPUs, with what such a job has on a shared cluster.
ON_GPUS = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: llm
  namespace: team
  uid: 4f6a
  labels: {team: nlp}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  nprocPerNode: "8"
  runPolicy:
    activeDeadlineSeconds: 86400
    backoffLimit: 3
    cleanPodPolicy: All
    ttlSecondsAfterFinished: 600
    schedulingPolicy: {queue: research, minAvailable: 2, priorityClass: high}
  pytorchReplicaSpecs:
    Master: &node
      replicas: 1
      restartPolicy: ExitCode
      template:
        metadata:
          annotations: {sidecar.istio.io/inject: "false"}
        spec:
          nodeSelector: {gpu: a100}
          tolerations: [{key: gpu, operator: Exists}]
          containers:
            - name: pytorch
              image: example/llm:1
              command: [bash, -c]
              args: ["torchrun --nnodes=$WORLD_SIZE --node_rank=${RANK} --master_addr=$MASTER_ADDR train.py"]
              ports: [{name: pytorchjob-port, containerPort: 23456}]
              env:
                - {name: NCCL_DEBUG, value: INFO}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
                - {name: PET_NNODES, value: "2"}
              envFrom: [{configMapRef: {name: settings}}]
              resources: {limits: {nvidia.com/gpu: 8}}
              volumeMounts: [{name: data, mountPath: /data}, {name: shm, mountPath: /dev/shm}]
          volumes:
            - name: data
              persistentVolumeClaim: {claimName: corpus}
            - name: shm
              emptyDir: {medium: Memory}
    Worker: *node
"""


def configured():
    """Return a PyTorchJob rendered from `DistributedConfig`."""
    config = DistributedConfig(
        env=[{"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        requests={"cpu": "2"},
        limits={"memory": "4Gi"},
        labels={"team": "vision"},
        node_selector={"zone": "a"},
        tolerations=[{"key": "spot", "operator": "Exists"}],
        run_policy={"backoffLimit": 2, "cleanPodPolicy": "Running"},
    )
    trainer = CustomTrainerContainer(image="example/vision:1", num_nodes=3)
    asked = request_builder.build_request(
        backend=TrainingOperatorBackend, trainer=trainer, options=[Name("vision"), config]
    )
    runtime = runtime_templates.get_raw_runtime(None, "torch-distributed")
    return manifest.render_pytorch_job(asked, runtime, configs.TrainingOperatorBackendConfig(), "team")


EXAMPLES = {"cpus": yaml.safe_load(ON_CPUS), "elastic": yaml.safe_load(ELASTIC), "gpus": yaml.safe_load(ON_GPUS)}


@pytest.fixture(scope="module")
def server():
    with Cluster(controllers=False, namespaces=["team", "kubeflow"]) as cluster:
        yield cluster


def created(server, raw):
    """Create an object on a server that refuses unknown fields."""
    plural = {"TrainingRuntime": "trainingruntimes", "TrainJob": "trainjobs"}[raw["kind"]]
    namespace = raw["metadata"].get("namespace", "default")
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/{plural}?fieldValidation=Strict"
    with RawClient(server.url) as client:
        return client.ask("POST", path, raw)


def changed(raw, **spec):
    """Return an example with other fields in its spec."""
    return {**copy.deepcopy(raw), "spec": {**copy.deepcopy(raw["spec"]), **spec}}


@pytest.mark.parametrize("job", [*EXAMPLES.values(), configured()], ids=[*EXAMPLES, "configured"])
def test_trainer_accepts_the_migrated_job(server, job):
    found = migrate_pytorch_job(job)
    runtimes = [found.runtime] if found.runtime else []
    assert [finding for runtime in runtimes for finding in validate_runtime(runtime)] == []
    answers = [created(server, raw) for raw in (*runtimes, found.trainjob)]
    assert {status for status, _ in answers} == {201}, answers


def test_migration_does_not_change_the_pytorch_job():
    job = copy.deepcopy(EXAMPLES["gpus"])
    migrate_pytorch_job(job)
    assert job == EXAMPLES["gpus"]


def test_torchrun_starts_a_script_on_every_node():
    found = migrate_pytorch_job(EXAMPLES["cpus"])
    trainer = found.trainjob["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["torchrun"], ["/opt/mnist.py", "--epochs=1"])
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)
    assert found.lost == []


def test_a_job_without_further_pod_fields_uses_the_default_runtime():
    found = migrate_pytorch_job(EXAMPLES["cpus"])
    assert found.runtime is None
    assert found.trainjob["spec"]["runtimeRef"]["name"] == "torch-distributed"


def test_elastic_nodes_become_a_fixed_number_with_a_note():
    found = migrate_pytorch_job(EXAMPLES["elastic"])
    paths = [note.path for note in found.lost]
    assert paths[0].endswith("containers[pytorch].command")
    assert paths[1:] == [
        f"spec.elasticPolicy.{key}" for key in ("rdzvBackend", "minReplicas", "maxReplicas", "maxRestarts", "metrics")
    ]
    assert found.trainjob["spec"]["trainer"]["numNodes"] == 2


def test_operator_variables_in_a_torchrun_command_are_renamed():
    args = migrate_pytorch_job(EXAMPLES["gpus"]).trainjob["spec"]["trainer"]["args"]
    told = "--nnodes=${PET_NNODES} --node_rank=${PET_NODE_RANK} --master_addr=${PET_MASTER_ADDR}"
    assert args == [f"torchrun {told} train.py"]


def test_further_pod_fields_move_to_the_runtime():
    runtime = migrate_pytorch_job(EXAMPLES["gpus"]).runtime
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]
    assert pod["metadata"] == {"annotations": {"sidecar.istio.io/inject": "false"}}
    assert (pod["spec"]["nodeSelector"], pod["spec"]["priorityClassName"]) == ({"gpu": "a100"}, "high")
    (node,) = pod["spec"]["containers"]
    assert sorted(node) == ["envFrom", "image", "name", "volumeMounts"]
    assert (job["backoffLimit"], pod["spec"]["restartPolicy"]) == (3, "Never")
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [130, 137, 138, 143]
    assert runtime["spec"]["podGroupPolicy"] == {"volcano": {}}


def test_fields_that_a_trainjob_has_move_to_the_trainjob():
    spec = migrate_pytorch_job(EXAMPLES["gpus"]).trainjob
    assert spec["metadata"] == {"name": "llm", "namespace": "team", "labels": {"team": "nlp"}}
    assert spec["spec"]["activeDeadlineSeconds"] == 86400
    trainer = spec["spec"]["trainer"]
    assert trainer["numProcPerNode"] == 8
    assert [entry["name"] for entry in trainer["env"]] == ["NCCL_DEBUG", "TOKEN"]
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}


def test_a_note_names_each_lost_field():
    assert [note.path.rpartition("containers")[2] for note in migrate_pytorch_job(EXAMPLES["gpus"]).lost] == [
        "[pytorch].env[PET_NNODES]",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "spec.runPolicy.cleanPodPolicy",
    ]


def test_a_note_names_each_difference_between_worker_and_master():
    job = copy.deepcopy(EXAMPLES["cpus"])
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = {
        "replicas": 2,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [{"name": "pytorch", "image": "another:1"}]}},
    }
    lost = [note.path.removeprefix("spec.pytorchReplicaSpecs.Worker.") for note in migrate_pytorch_job(job).lost]
    assert lost == [
        "template.spec.containers[pytorch].command",
        "template.spec.containers[pytorch].image",
        "restartPolicy",
    ]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"nprocPerNode": "gpu"}, "spec.nprocPerNode"),
        ({"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}, "spec.runPolicy.schedulingPolicy.minAvailable"),
        (
            {"runPolicy": {"schedulingPolicy": {"minResources": {"cpu": 1}}}},
            "spec.runPolicy.schedulingPolicy.minResources",
        ),
    ],
    ids=["gpus of nowhere", "a part of the gang", "resources of the gang"],
)
def test_a_field_without_equivalent_is_reported_as_lost(spec, path):
    job = changed(EXAMPLES["elastic"], elasticPolicy=None, **spec)
    assert path in [note.path for note in migrate_pytorch_job(job).lost]


@pytest.mark.parametrize(
    ("restart", "job", "pod"),
    [("Never", {"backoffLimit": 0}, "Never"), ("Always", {}, None), ("OnFailure", {}, None)],
)
def test_restart_policies_become_job_policies(restart, job, pod):
    example = copy.deepcopy(EXAMPLES["elastic"])
    example["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart
    example["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    found = migrate_pytorch_job(example).runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    template = found.pop("template")
    assert (found, template["spec"].get("restartPolicy")) == (job, pod)


@pytest.mark.parametrize(
    ("command", "args", "wanted"),
    [
        (["python", "-m", "train"], ["--lr", "1"], ["torchrun", "-m", "train", "--lr", "1"]),
        (["/usr/bin/python3.11", "train.py"], None, ["torchrun", "train.py"]),
        (["python", "-c", "pass"], None, ["torchrun", "--no-python", "python", "-c", "pass"]),
        (["sh", "-c"], ["./train $RANK"], ["torchrun", "--no-python", "sh", "-c", "./train $RANK"]),
        (["./train", "--at=$(MASTER_ADDR)"], None, ["torchrun", "--no-python", "./train", "--at=$(PET_MASTER_ADDR)"]),
        (["torchrun", "train.py"], ["--x"], ["torchrun", "train.py", "--x"]),
    ],
)
def test_a_program_receives_the_variables_of_the_operator(command, args, wanted):
    found = convert_command(command, args, nodes=2)
    assert [*(found.command or ()), *(found.args or ())] == wanted


def test_the_entry_point_of_an_image_is_kept_with_a_note():
    found = convert_command(None, ["--lr", "1"], nodes=2)
    assert (found.command, found.args) == (None, ["--lr", "1"])
    assert "Trainer does not set RANK" in found.lost[0]


def test_labels_and_annotations_of_this_package_are_removed():
    metadata = migrate_pytorch_job(configured()).trainjob["metadata"]
    assert metadata == {"name": "vision", "namespace": "team"}


def test_the_items_of_a_list_are_read():
    jobs = [EXAMPLES["cpus"], {"apiVersion": "v1", "kind": "Pod"}]
    assert list(iterate_pytorch_jobs({"kind": "List", "items": jobs})) == [EXAMPLES["cpus"]]


def test_a_job_without_replicas_is_refused():
    with pytest.raises(InvalidRequestError, match="'empty' has no spec"):
        migrate_pytorch_job({"metadata": {"name": "empty"}, "spec": {}})


def test_a_job_without_a_pytorch_container_is_refused():
    replica = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}
    with pytest.raises(InvalidRequestError, match="has no container 'pytorch'"):
        migrate_pytorch_job({"metadata": {"name": "job"}, "spec": {"pytorchReplicaSpecs": {"Master": replica}}})
