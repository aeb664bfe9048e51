"""The configuration of the Training Operator backend. Loads nothing of the backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_validator

from trainer_core.model.config import FetchingClusterConfig


class TrainingOperatorBackendConfig(FetchingClusterConfig):
    """Run jobs as PyTorchJobs, on clusters that have the older Training Operator.

    Attributes:
        namespace: Namespace of the PyTorchJobs. None (the default) for the namespace of the pod that this runs in,
            otherwise of the kubeconfig's context, otherwise ``default``.
        config_file: Path of the kubeconfig. None (the default) for ``KUBECONFIG`` or ``~/.kube/config``.
        context: Context of the kubeconfig. None (the default) for its current context.
        client_configuration: A ``kubernetes.client.Configuration`` to use instead of a kubeconfig.
        kube_config: Content of a kubeconfig, in YAML or JSON, to use instead of a file. It may not run programs or
            refer to files. It is a secret: no JSON and no text form of this configuration contains it.
        in_cluster: Use the service account of the pod that this runs in, even if there is a kubeconfig. Default False.
        checkpoints_uri: Where the option `Checkpoints` keeps checkpoints if it has no ``uri``, such as
            ``pvc://checkpoints``. None (the default): the option must have one.
        code_uri: Where the files of a large ``code`` go, such as ``s3://bucket/code``. None (the default): the trainer
            must name a place.
        resource_interval: Seconds between two reports of the use of resources, unless the trainer's environment has
            ``TRAINJOB_RESOURCE_INTERVAL``; 0 for no reports. None (the default) for 10.
        default_options: Options of each TrainJob whose request does not have them, as text in YAML, too, such as
            ``[{Stalled: {after: 30m}}]``. None (the default): those of the environment variable
            ``TRAINJOB_DEFAULT_OPTIONS``.
        scheduling_grace: How long a pod may wait for a Kubernetes node before a wait with ``fail_fast`` cancels its
            TrainJob, in seconds or as text such as ``"45m"``. Waiting for an autoscaler that adds a node, for a queue
            or for quota has no limit. Default 30 minutes.
        dataset_initializer_image: Image with which pods fetch datasets.
        model_initializer_image: Image with which pods fetch models.
        runtimes: Folder of further runtimes: YAML files in the shape of a ClusterTrainingRuntime, because the operator
            has no runtimes. None (the default) for the environment variable ``TRAINJOB_RUNTIMES``, otherwise the
            runtimes of this package.

    Raises:
        ValueError: A setting is unknown, or a value is invalid.
    """

    backend: ClassVar[str] = "training-operator"
    implementation: ClassVar[str] = "trainer_core.backends.training_operator.backend:TrainingOperatorBackend"
    migration: ClassVar[str] = "trainer_core.backends.training_operator.migrate:migrate_document"

    runtimes: Path | None = None

    @field_validator("runtimes", mode="before")
    @classmethod
    def _check_runtimes(cls, value: Any) -> Any:
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ValueError("must be the path of a folder; leave it out for the packaged runtimes")
        return value

    @property
    def runtimes_folder(self) -> Path | None:
        """Folder of further runtimes. Reads the environment on each access."""
        folder = self.runtimes or os.environ.get("TRAINJOB_RUNTIMES")
        return Path(folder).expanduser() if folder else None
