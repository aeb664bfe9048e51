"""PyTorchJobs as people have them become TrainJobs: taken by Trainer, and honest about what is different."""

from __future__ import annotations

import copy

import pytest
import yaml
from fake_cluster import Cluster
from fake_cluster.asking import Asker

from trainer_core import DistributedConfig, Name, build, configs
from trainer_core.admin.launching import launch
from trainer_core.admin.migrate import migrate, pytorch_jobs
from trainer_core.admin.validate import findings
from trainer_core.backends.training_operator import blueprints, manifest
from trainer_core.backends.training_operator.backend import TrainingOperatorBackend
from trainer_core.errors import InvalidRequestError
from trainer_core.trainers import CustomTrainerContainer

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
    """A job as `DistributedConfig` makes it."""
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
    asked = build.request(backend=TrainingOperatorBackend, trainer=trainer, options=[Name("vision"), config])
    runtime = blueprints.get(None, "torch-distributed")
    return manifest.pytorch_job(asked, runtime, configs.TrainingOperatorBackendConfig(), "team")


EXAMPLES = {"cpus": yaml.safe_load(ON_CPUS), "elastic": yaml.safe_load(ELASTIC), "gpus": yaml.safe_load(ON_GPUS)}


@pytest.fixture(scope="module")
def server():
    with Cluster(controllers=False, namespaces=["team", "kubeflow"]) as cluster:
        if not cluster.validates:
            pytest.skip("the CRDs are absent; set TRAINJOB_CRD_DIR")
        yield cluster


def created(server, raw):
    """The answer of a server that refuses what it does not know."""
    plural = {"TrainingRuntime": "trainingruntimes", "TrainJob": "trainjobs"}[raw["kind"]]
    namespace = raw["metadata"].get("namespace", "default")
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/{plural}?fieldValidation=Strict"
    with Asker(server.url) as client:
        return client.ask("POST", path, raw)


def changed(raw, **spec):
    """An example with other fields in its spec."""
    return {**copy.deepcopy(raw), "spec": {**copy.deepcopy(raw["spec"]), **spec}}


@pytest.mark.parametrize("job", [*EXAMPLES.values(), configured()], ids=[*EXAMPLES, "configured"])
def test_trainer_takes_what_becomes_of_it(server, job):
    found = migrate(job)
    runtimes = [found.runtime] if found.runtime else []
    assert [finding for runtime in runtimes for finding in findings(runtime)] == []
    answers = [created(server, raw) for raw in (*runtimes, found.trainjob)]
    assert {status for status, _ in answers} == {201}, answers


def test_what_it_is_made_from_stays_as_it_was():
    job = copy.deepcopy(EXAMPLES["gpus"])
    migrate(job)
    assert job == EXAMPLES["gpus"]


def test_a_script_is_started_by_torchrun_on_every_node():
    found = migrate(EXAMPLES["cpus"])
    trainer = found.trainjob["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["torchrun"], ["/opt/mnist.py", "--epochs=1"])
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)
    assert found.lost == []


def test_a_job_of_which_a_trainjob_can_say_all_needs_no_runtime_of_its_own():
    found = migrate(EXAMPLES["cpus"])
    assert found.runtime is None
    assert found.trainjob["spec"]["runtimeRef"]["name"] == "torch-distributed"


def test_elastic_nodes_become_a_fixed_number_and_that_is_said():
    found = migrate(EXAMPLES["elastic"])
    paths = [note.path for note in found.lost]
    assert paths[0].endswith("containers[pytorch].command")
    assert paths[1:] == [
        f"spec.elasticPolicy.{key}" for key in ("rdzvBackend", "minReplicas", "maxReplicas", "maxRestarts", "metrics")
    ]
    assert found.trainjob["spec"]["trainer"]["numNodes"] == 2


def test_variables_of_the_operator_are_those_of_trainer_where_torchrun_is_called_already():
    args = migrate(EXAMPLES["gpus"]).trainjob["spec"]["trainer"]["args"]
    told = "--nnodes=${PET_NNODES} --node_rank=${PET_NODE_RANK} --master_addr=${PET_MASTER_ADDR}"
    assert args == [f"torchrun {told} train.py"]


def test_what_only_a_runtime_can_say_stands_there():
    runtime = migrate(EXAMPLES["gpus"]).runtime
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]
    assert pod["metadata"] == {"annotations": {"sidecar.istio.io/inject": "false"}}
    assert (pod["spec"]["nodeSelector"], pod["spec"]["priorityClassName"]) == ({"gpu": "a100"}, "high")
    (node,) = pod["spec"]["containers"]
    assert sorted(node) == ["envFrom", "image", "name", "volumeMounts"]
    assert (job["backoffLimit"], pod["spec"]["restartPolicy"]) == (3, "Never")
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [130, 137, 138, 143]
    assert runtime["spec"]["podGroupPolicy"] == {"volcano": {}}


def test_what_a_trainjob_can_say_stands_there():
    spec = migrate(EXAMPLES["gpus"]).trainjob
    assert spec["metadata"] == {"name": "llm", "namespace": "team", "labels": {"team": "nlp"}}
    assert spec["spec"]["activeDeadlineSeconds"] == 86400
    trainer = spec["spec"]["trainer"]
    assert trainer["numProcPerNode"] == 8
    assert [entry["name"] for entry in trainer["env"]] == ["NCCL_DEBUG", "TOKEN"]
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}


def test_everything_that_is_lost_is_named():
    assert [note.path.rpartition("containers")[2] for note in migrate(EXAMPLES["gpus"]).lost] == [
        "[pytorch].env[PET_NNODES]",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "spec.runPolicy.cleanPodPolicy",
    ]


def test_workers_that_differ_from_their_master_are_named():
    job = copy.deepcopy(EXAMPLES["cpus"])
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = {
        "replicas": 2,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [{"name": "pytorch", "image": "another:1"}]}},
    }
    lost = [note.path.removeprefix("spec.pytorchReplicaSpecs.Worker.") for note in migrate(job).lost]
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
def test_what_trainer_has_no_word_for_is_lost(spec, path):
    job = changed(EXAMPLES["elastic"], elasticPolicy=None, **spec)
    assert path in [note.path for note in migrate(job).lost]


@pytest.mark.parametrize(
    ("restart", "job", "pod"),
    [("Never", {"backoffLimit": 0}, "Never"), ("Always", {}, None), ("OnFailure", {}, None)],
)
def test_restart_policies_are_those_of_a_job(restart, job, pod):
    example = copy.deepcopy(EXAMPLES["elastic"])
    example["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart
    example["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    found = migrate(example).runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
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
def test_a_program_finds_what_the_operator_told_it(command, args, wanted):
    found = launch(command, args, nodes=2)
    assert [*(found.command or ()), *(found.args or ())] == wanted


def test_the_entry_point_of_an_image_is_left_alone_and_named():
    found = launch(None, ["--lr", "1"], nodes=2)
    assert (found.command, found.args) == (None, ["--lr", "1"])
    assert "entry point is not told RANK" in found.lost[0]


def test_what_this_project_has_written_on_a_job_is_its_own():
    metadata = migrate(configured()).trainjob["metadata"]
    assert metadata == {"name": "vision", "namespace": "team"}


def test_the_items_of_a_list_are_found():
    jobs = [EXAMPLES["cpus"], {"apiVersion": "v1", "kind": "Pod"}]
    assert list(pytorch_jobs({"kind": "List", "items": jobs})) == [EXAMPLES["cpus"]]


def test_a_job_without_nodes_is_refused():
    with pytest.raises(InvalidRequestError, match="'empty' has no spec"):
        migrate({"metadata": {"name": "empty"}, "spec": {}})


def test_a_job_without_the_container_is_refused():
    replica = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}
    with pytest.raises(InvalidRequestError, match="has no container 'pytorch'"):
        migrate({"metadata": {"name": "job"}, "spec": {"pytorchReplicaSpecs": {"Master": replica}}})
