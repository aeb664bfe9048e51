"""The configuration of the Run:ai backend. Loads nothing of the backend."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from trainer_core.model.config import ClusterConfig, Text


class RunaiBackendConfig(ClusterConfig):
    """Run jobs as Run:ai workloads.

    Attributes:
        project: The Run:ai project.
        cluster_id: Id of the cluster in Run:ai's control plane, an annotation of the workloads. None (the default) for
            no annotation.
        succeeded_phases: Phases of a workload that succeeded.
        failed_phases: Phases of a workload that failed permanently.
        stopped_phases: Phases of a workload that was stopped: Suspended if ``spec.active`` is false, otherwise Failed.
            A workload in any other phase is still running.
        namespace: Namespace of the workloads. None (the default) for ``runai-<project>``.
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

    Raises:
        ValueError: A setting is unknown, project and namespace are both missing, or a value is invalid.
    """

    backend: ClassVar[str] = "runai"
    implementation: ClassVar[str] = "trainer_core.backends.runai.backend:RunaiBackend"

    project: Text | None = None
    cluster_id: Text | None = None
    succeeded_phases: tuple[str, ...] = ("Completed", "Succeeded")
    failed_phases: tuple[str, ...] = ("Failed", "Fail", "TimedOut")
    stopped_phases: tuple[str, ...] = ("Stopped", "Deleted")

    @model_validator(mode="after")
    def _check_project(self) -> RunaiBackendConfig:
        if self.project is None and self.namespace is None:
            raise ValueError("project is missing; give the Run:ai project, or the namespace of its workloads")
        return self

    @property
    def project_namespace(self) -> str:
        """Namespace of the project's workloads."""
        return self.namespace or f"runai-{self.project}"
