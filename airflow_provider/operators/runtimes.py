"""Operators that create and delete training runtimes of a cluster, as setup and teardown of a DAG run."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider import spec
from airflow_provider.exceptions import TrainJobError, TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.base import validation
from trainer_core.base.errors import BackendUnavailableError, ConflictError, RuntimeNotFoundError, TrainerError
from trainer_core.model.config import KubernetesBackendConfig

if TYPE_CHECKING:
    from airflow.sdk import Context

    from trainer_core.runtime_admin.apply import RuntimeAdmin

__all__ = ["CreateRuntimeOperator", "DeleteRuntimeOperator"]

_KINDS = ("TrainingRuntime", "ClusterTrainingRuntime")


class _RuntimeOperator(BaseOperator):
    template_fields: Sequence[str] = ("runtime",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"runtime": "yaml"}
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        runtime: Any,
        backend_config: KubernetesBackendConfig | Mapping[str, Any] | None,
        trainjob_conn_id: str | None,
        **kwargs: Any,
    ) -> None:
        # Airflow walks through every value of a template field.
        validation.check_size("runtime", runtime)
        super().__init__(**kwargs)
        self.runtime = runtime
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id

    @cached_property
    def hook(self) -> TrainJobHook:
        """Hook for the operator's connection and the ``kubernetes`` backend."""
        return TrainJobHook(self.trainjob_conn_id, KubernetesBackendConfig.backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Run the operation. Succeeds if the cluster is already in the requested state.

        Raises:
            TrainJobRejectedError: The manifest is invalid, or the server refuses the operation.
            TrainJobUnreachableError: The cluster is unavailable.
            TrainJobError: The runtime is in use, or another client changes it; a retry can succeed.
        """
        try:
            return self._run()
        except BackendUnavailableError as error:
            raise TrainJobUnreachableError(str(error)) from error
        except ConflictError as error:
            raise TrainJobError(str(error)) from error  # A retry can succeed: the TrainJobs that use it may have ended.
        except (TrainerError, ValueError) as error:
            raise TrainJobRejectedError(str(error)) from error

    @abstractmethod
    def _run(self) -> Any:
        """Call the runtime administration API."""

    def _create_admin(self, namespace: str | None) -> RuntimeAdmin:
        from trainer_core.runtime_admin.apply import RuntimeAdmin  # imports the runtime rules, which no DAG file needs

        config = self.hook.config
        assert isinstance(config, KubernetesBackendConfig)  # noqa: S101 -- for the type checker; the hook guarantees it
        return RuntimeAdmin(config.model_copy(update={"namespace": namespace}) if namespace else config)


class CreateRuntimeOperator(_RuntimeOperator):
    """Create a training runtime on a cluster, or update the existing one of the same name.

    The result is a dict with ``name``, ``kind``, ``namespace`` (TrainingRuntime only) and ``action``: ``created``,
    ``changed``, ``recreated`` or ``unchanged``. Use a name that is unique to the DAG run, such as one with
    ``{{ ds_nodash }}``, because the teardown deletes the runtime.

    Example:
        ```python
        create = CreateRuntimeOperator(task_id="create", runtime=manifest)
        delete = DeleteRuntimeOperator(task_id="delete", runtime=create.output)
        create.as_setup() >> train >> delete.as_teardown(setups=create)
        ```

    Args:
        runtime: Manifest of a TrainingRuntime or ClusterTrainingRuntime: a dict, such as the result of
            `trainer_core.runtime_admin.runtime_builder`, or YAML. See
            [TrainingRuntime](https://pkg.go.dev/github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1#TrainingRuntime).
            Required. Templated.
        recreate: True: if the server refuses an update, delete the runtime and create it again. Default: False. Not
            templated.
        backend_config: A `KubernetesBackendConfig`, used instead of the connection, or a dict of settings that override
            those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob`` with backend ``kubernetes``. Default:
            ``trainjob_default``. None: use no connection. Not templated.
        kwargs: Arguments of every operator.

    Raises:
        ValueError: `runtime` is not the manifest of a runtime, or violates a rule; raised when the DAG is parsed. A
            manifest with templates is checked when the task runs.
    """

    def __init__(
        self,
        *,
        runtime: Mapping[str, Any] | str,
        recreate: bool = False,
        backend_config: KubernetesBackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            runtime=_parse_manifest(runtime), backend_config=backend_config, trainjob_conn_id=trainjob_conn_id, **kwargs
        )
        self.recreate = recreate

    def _run(self) -> dict[str, Any]:
        metadata = self.runtime["metadata"]
        admin = self._create_admin(metadata.get("namespace"))
        action = admin.apply(self.runtime, recreate=self.recreate)
        self.log.info("%s %s: %s", self.runtime["kind"], metadata["name"], action)
        where = {"namespace": admin.namespace} if self.runtime["kind"] == _KINDS[0] else {}
        return {"name": metadata["name"], "kind": self.runtime["kind"], **where, "action": action}


class DeleteRuntimeOperator(_RuntimeOperator):
    """Delete a training runtime of a cluster, as the teardown of `CreateRuntimeOperator`.

    Succeeds if the runtime is already gone. A runtime that unfinished TrainJobs use is not deleted: the task fails, and
    a retry can succeed after they end.

    Args:
        runtime: Result of `CreateRuntimeOperator` (``create.output``), or a name; with a name, a TrainingRuntime of the
            namespace takes precedence over a ClusterTrainingRuntime. Required. Templated.
        force: True: delete the runtime even if unfinished TrainJobs use it. Default: False. Not templated.
        backend_config: A `KubernetesBackendConfig`, used instead of the connection, or a dict of settings that override
            those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob`` with backend ``kubernetes``. Default:
            ``trainjob_default``. None: use no connection. Not templated.
        kwargs: Arguments of every operator.

    Raises:
        ValueError: `runtime` is empty; raised when the DAG is parsed.
    """

    def __init__(
        self,
        *,
        runtime: Any,
        force: bool = False,
        backend_config: KubernetesBackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(runtime=runtime, backend_config=backend_config, trainjob_conn_id=trainjob_conn_id, **kwargs)
        if not runtime:
            raise ValueError("runtime is empty; pass a name, or the result of CreateRuntimeOperator (create.output)")
        self.force = force

    def _run(self) -> None:
        from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES

        runtime = self.runtime if isinstance(self.runtime, Mapping) else {"name": self.runtime}
        validation.check_object_name("runtime", runtime.get("name"))
        scopes = {kind.kind: kind for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}
        admin = self._create_admin(runtime.get("namespace"))
        try:
            admin.delete(runtime["name"], scope=scopes.get(runtime.get("kind", "")), force=self.force)
        except RuntimeNotFoundError:
            self.log.info("Runtime %s does not exist; nothing to delete", runtime["name"])


def _parse_manifest(runtime: Any) -> Any:
    manifest = runtime
    validation.check_size("runtime", manifest)
    if isinstance(runtime, str):
        manifest = spec.parse_template_yaml("runtime", runtime)
    metadata = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name or manifest.get("kind") not in _KINDS:
        raise ValueError(f"runtime must be the manifest of a {' or '.join(_KINDS)} with metadata.name")
    # A manifest with templates is checked when the task runs, after rendering.
    if "{{" not in json.dumps(manifest, default=str):
        _check_rules(manifest)
    return manifest


def _check_rules(manifest: Mapping[str, Any]) -> None:
    # These import the runtime rules, which no other DAG file needs.
    from trainer_core.runtime_admin import ml_policies
    from trainer_core.runtime_admin.validate import validate_runtime

    # The worker checks again with the fields of the cluster's version.
    wrong = next((each for each in validate_runtime(manifest, ml_policies.ANY) if each.severity == "error"), None)
    if wrong is not None:
        raise ValueError(f"runtime {manifest['metadata']['name']!r}: {wrong}")
