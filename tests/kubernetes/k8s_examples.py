"""Example requests and the objects that are created for them, as golden files for review."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from k8s_crds import runtime, server

from trainer_core import (
    ActiveDeadlineSeconds,
    Annotations,
    BuiltinTrainer,
    ContainerPatch,
    CustomTrainer,
    CustomTrainerContainer,
    DataCacheInitializer,
    DeleteAfter,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    Labels,
    LoraConfig,
    ManagedBy,
    PodSpecPatch,
    PodTemplatePatch,
    PriorityClass,
    QueueName,
    ReplicatedJobPatch,
    RuntimePatch,
    S3DatasetInitializer,
    S3ModelInitializer,
    SecretRef,
    Suspend,
    TorchTuneConfig,
    TorchTuneInstructDataset,
    TrainerArgs,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
    VolumeDatasetInitializer,
    VolumeModelInitializer,
    Workspace,
)
from trainer_core.backends.trainer_v2 import manifest, validation
from trainer_core.backends.trainer_v2.backend import KubernetesBackend
from trainer_core.definition import request_builder
from trainer_core.k8s import initializer_job, labels, manifest_common
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.packaging import argv_payload

GOLDEN = Path(__file__).with_name("golden")
NAMESPACE = "team-vision"
UID = "8f4b6d0e-5b1c-4f6e-9d43-0c1f0a1b2c3d"
#: Long parts that change with every change of the node code.
_UNPACKER, _CHUNK = "<the unpacker>", "<the function>"
_ELIDED = {labels.REQUEST: "<the request>", labels.FINGERPRINT: "<its fingerprint>", labels.RUNTIME: "<its runtime>"}


def train(epochs: int) -> dict[str, float]:
    return {"accuracy": 1 - 1 / epochs}


def a_request(runtime_name: str | None = None, owner: Owner | None = None, **arguments: Any) -> TrainJobRequest:
    """Return the request that `TrainerClient.train` submits as ``example``."""
    request = request_builder.build_request(backend=KubernetesBackend, runtime=runtime_name, owner=owner, **arguments)
    return request.with_name("example")


def on_nodes(pod: PodSpecPatch | None = None, job: str = "node", labels: dict[str, str] | None = None) -> RuntimePatch:
    """Return a patch of the pods of a replicated job."""
    metadata = {"labels": labels} if labels else None
    template = JobTemplatePatch(spec=JobSpecPatch(template=PodTemplatePatch(metadata=metadata, spec=pod)))
    jobs = JobSetSpecPatch(replicated_jobs=[ReplicatedJobPatch(name=job, template=template)])
    return RuntimePatch(TrainingRuntimeSpecPatch(template=JobSetTemplatePatch(spec=jobs)))


@dataclass(frozen=True)
class Example:
    """An example request with its runtime and Trainer version."""

    request: Callable[[], TrainJobRequest]
    #: Its runtime; None for a job that only initializes.
    runtime: str | None = "torch-distributed"
    version: str = "2.3"
    attempt: int = 0

    def objects(self) -> list[dict[str, Any]]:
        request = self.request()
        if self.runtime is None:
            made = initializer_job.render_manifests(request, KubernetesBackendConfig(), NAMESPACE, self.attempt)
        else:
            raw, takes = runtime(self.runtime), server(self.version)
            validation.check_request(request, raw, takes, NAMESPACE)
            made = [manifest.render_trainjob(request, raw, takes, NAMESPACE, self.attempt)]
        job = {**made[-1], "metadata": {**made[-1]["metadata"], "uid": UID}}
        return [*made, *([manifest_common.build_secret(request, job)] if request.context.literal_secrets else [])]


def golden(name: str, objects: list[dict[str, Any]]) -> str:
    """Return the golden file of an example; with TRAINJOB_UPDATE_GOLDEN set, write it first."""
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAINJOB_UPDATE_GOLDEN"):
        path.write_text(readable(objects), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def readable(objects: list[dict[str, Any]]) -> str:
    """Return the objects as YAML with long parts elided."""
    return yaml.safe_dump_all([_elided(each) for each in copy.deepcopy(objects)], sort_keys=False, width=120)


def _elided(raw: dict[str, Any]) -> dict[str, Any]:
    annotations = raw["metadata"].get("annotations", {})
    annotations.update({key: text for key, text in _ELIDED.items() if key in annotations})
    trainer = raw["spec"].get("trainer", {}) if "spec" in raw else {}
    if argv_payload.UNPACKER in trainer.get("command", ()):
        trainer["command"][-1] = _UNPACKER
        launch, *_ = trainer["args"]
        trainer["args"] = [launch, _CHUNK]
    return raw


_MOVED = PodSpecPatch(
    node_selector={"accelerator": "a100"},
    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    volumes=[{"name": "scratch", "emptyDir": {}}],
    containers=[ContainerPatch(name="node", volume_mounts=[{"name": "scratch", "mountPath": "/scratch"}])],
)


def _patched() -> TrainJobRequest:
    return a_request(trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0"), options=[on_nodes(_MOVED)])


EXAMPLES: dict[str, Example] = {
    "function": Example(
        lambda: a_request(
            trainer=CustomTrainer(train, {"epochs": 3}, num_nodes=2, resources_per_node={"gpu": 2, "memory": "16Gi"})
        )
    ),
    "function-with-packages": Example(
        lambda: a_request(
            trainer=CustomTrainer(
                train,
                {"epochs": 3},
                image="python:3.11-slim",
                packages_to_install=["scikit-learn>=1.5"],
                env={"LOG_LEVEL": "debug", "EPOCHS": "3"},
                num_proc_per_node=1,
                result_uri="file:///mnt/result.json",
            )
        )
    ),
    "function-with-mpi": Example(
        lambda: a_request(
            trainer=CustomTrainer(train, {"epochs": 3}, num_nodes=3, num_proc_per_node=2, env={"LOG_LEVEL": "debug"})
        ),
        runtime="deepspeed-distributed",
    ),
    "function-with-jax": Example(
        lambda: a_request(trainer=CustomTrainer(train, {"epochs": 3}, num_nodes=2)), runtime="jax-distributed"
    ),
    "container": Example(
        lambda: a_request(
            trainer=CustomTrainerContainer(
                image="ghcr.io/team/train:1.0",
                num_nodes=2,
                env={"LOG_LEVEL": "debug", "HF_TOKEN": SecretRef("hugging-face", "token")},
            ),
            options=[TrainerCommand(["python", "train.py"]), TrainerArgs(["--epochs=3", ""])],
        )
    ),
    "runtime-as-it-is": Example(lambda: a_request()),
    "runtime-with-arguments": Example(lambda: a_request(options=[TrainerArgs(["--epochs=3"])])),
    "torchtune-resources": Example(
        lambda: a_request(trainer=BuiltinTrainer(TorchTuneConfig(resources_per_node={"gpu": 1}))),
        runtime="torchtune-llama3.2-1b",
    ),
    "torchtune-lora": Example(
        lambda: a_request(
            trainer=BuiltinTrainer(
                TorchTuneConfig(
                    epochs=1,
                    batch_size=4,
                    peft_config=LoraConfig(lora_rank=8, lora_alpha=16),
                    dataset_preprocess_config=TorchTuneInstructDataset(source="parquet", split="train[:90%]"),
                    resources_per_node={"gpu": 1},
                )
            ),
            initializer=Initializer(
                dataset=HuggingFaceDatasetInitializer("hf://tatsu-lab/alpaca/data"),
                model=HuggingFaceModelInitializer("hf://meta-llama/Llama-3.2-1B-Instruct", access_token="hf_literal"),
            ),
        ),
        runtime="torchtune-llama3.2-1b",
    ),
    "s3": Example(
        lambda: a_request(
            trainer=BuiltinTrainer(TorchTuneConfig(epochs=1)),
            initializer=Initializer(
                dataset=S3DatasetInitializer(
                    "s3://datasets/alpaca",
                    ignore_patterns=["*.csv", "*.tmp"],
                    endpoint="https://minio.example.com",
                    region="eu-west-1",
                    access_key_id=SecretRef("minio", "id"),
                    secret_access_key=SecretRef("minio", "secret"),
                ),
                model=S3ModelInitializer("s3://models/qwen", role_arn="arn:aws:iam::123456789012:role/reader"),
            ),
        ),
        runtime="torchtune-qwen2.5-1.5b",
    ),
    "data-cache": Example(
        lambda: a_request(
            trainer=CustomTrainer(train, {"epochs": 3}, num_nodes=2),
            initializer=Initializer(
                dataset=DataCacheInitializer(
                    "cache://sales/orders",
                    metadata_loc="s3://tables/orders/metadata.json",
                    num_data_nodes=4,
                    worker_mem="8Gi",
                    iam_role="arn:aws:iam::123456789012:role/reader",
                )
            ),
        ),
        runtime="torch-distributed-with-cache",
    ),
    "volume": Example(
        lambda: a_request(
            trainer=CustomTrainer(train, {"epochs": 3}),
            initializer=Initializer(
                dataset=VolumeDatasetInitializer("pvc://fetched/dataset"),
                model=VolumeModelInitializer("pvc://models"),
            ),
            options=[on_nodes(_MOVED)],
        )
    ),
    "volume-with-mpi": Example(
        lambda: a_request(
            trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0", num_nodes=2),
            initializer=Initializer(dataset=VolumeDatasetInitializer("pvc://fetched/dataset")),
        ),
        runtime="deepspeed-distributed",
    ),
    "initialize": Example(
        lambda: a_request(
            initializer=Initializer(
                dataset=HuggingFaceDatasetInitializer("hf://tatsu-lab/alpaca", access_token="hf_literal"),
                model=S3ModelInitializer(
                    "s3://models/digits",
                    access_key_id=SecretRef("minio", "id"),
                    secret_access_key=SecretRef("minio", "secret"),
                ),
            ),
            options=[Workspace("fetched", size="50Gi", access_mode="ReadWriteMany")],
        ),
        runtime=None,
    ),
    "kueue": Example(
        lambda: a_request(
            trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0", num_nodes=3),
            options=[QueueName("training"), PriorityClass("high"), ManagedBy("kueue.x-k8s.io/multikueue")],
        )
    ),
    **{f"patches-{version}": Example(_patched, version=version) for version in ("2.0", "2.1", "2.2", "2.3")},
    "suspended": Example(
        lambda: a_request(
            owner=Owner(key="dag/run/task", slug="task"),
            trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0"),
            options=[
                Suspend(),
                ActiveDeadlineSeconds(3600),
                DeleteAfter(86400),
                Labels({"team": "vision"}),
                Annotations({"note": "any text"}),
            ],
        ),
        attempt=2,
    ),
}
