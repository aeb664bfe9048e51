"""Operators for runtimes of a cluster: create one for the tasks of a DAG run, and delete it after them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider.exceptions import TrainJobError, TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core import checks
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError, ConflictError, RuntimeNotFoundError, TrainerError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from trainer_core.admin.apply import RuntimeAdmin

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
        backend_config: KubernetesBackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.runtime = runtime
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id

    @cached_property
    def hook(self) -> TrainJobHook:
        """The way to the cluster."""
        return TrainJobHook(self.trainjob_conn_id, KubernetesBackendConfig.backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Do it. Done already: this succeeds."""
        try:
            return self._do()
        except BackendUnavailableError as error:
            raise TrainJobUnreachableError(str(error)) from error
        except ConflictError as error:
            raise TrainJobError(str(error)) from error  # Whoever uses or changes it now may have ended by a next try.
        except (TrainerError, ValueError) as error:
            raise TrainJobRejectedError(str(error)) from error

    @abstractmethod
    def _do(self) -> Any:
        """What this operator is for."""

    def _admin(self, namespace: str | None) -> RuntimeAdmin:
        from trainer_core.admin.apply import RuntimeAdmin  # rules of runtimes, which no DAG file needs

        config = self.hook.config
        assert isinstance(config, KubernetesBackendConfig)  # noqa: S101 -- for the type checker; it was asked for
        return RuntimeAdmin(config.model_copy(update={"namespace": namespace}) if namespace else config)


class CreateRuntimeOperator(_RuntimeOperator):
    """Create a runtime on a cluster, or make the one of its name like it: the setup of tasks that train with it.

        create = CreateRuntimeOperator(task_id="create", runtime=manifest)
        delete = DeleteRuntimeOperator(task_id="delete", runtime=create.output)
        create.as_setup() >> train >> delete.as_teardown(setups=create)

    Give it a name that nobody else uses, such as one with ``{{ ds_nodash }}``: the teardown deletes it.

    Its result says what there is now: ``name``, ``kind`` and, of a TrainingRuntime, ``namespace``; and ``action``:
    ``created``, ``changed``, ``recreated`` or ``unchanged``.

    Args:
        runtime: The manifest of a TrainingRuntime or ClusterTrainingRuntime: a dict, as `trainer_core.admin.build`
            makes it, or YAML. Templated.
        recreate: Delete it and create it again if the server would refuse a change.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `TrainJobOperator`; it must be of the backend ``kubernetes``.
        kwargs: As for every operator.

    Raises:
        ValueError: Not the manifest of a runtime, or it breaks a rule.
    """

    def __init__(self, *, runtime: Mapping[str, Any] | str, recreate: bool = False, **kwargs: Any) -> None:
        super().__init__(runtime=_manifest(runtime), **kwargs)
        self.recreate = recreate

    def _do(self) -> dict[str, Any]:
        metadata = self.runtime["metadata"]
        admin = self._admin(metadata.get("namespace"))
        action = admin.apply(self.runtime, recreate=self.recreate)
        self.log.info("%s %s: %s", self.runtime["kind"], metadata["name"], action)
        where = {"namespace": admin.namespace} if self.runtime["kind"] == _KINDS[0] else {}
        return {"name": metadata["name"], "kind": self.runtime["kind"], **where, "action": action}


class DeleteRuntimeOperator(_RuntimeOperator):
    """Delete a runtime of a cluster: the teardown for `CreateRuntimeOperator`. Gone already: this succeeds.

    One that TrainJobs use which have not ended is not deleted: the task fails, and a retry may find them ended.

    Args:
        runtime: What `CreateRuntimeOperator` returned (``create.output``), or a name: then a TrainingRuntime of the
            namespace comes before a ClusterTrainingRuntime. Templated.
        force: Do not ask which TrainJobs use it.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `CreateRuntimeOperator`.
        kwargs: As for every operator.

    Raises:
        ValueError: There is no runtime to delete.
    """

    def __init__(self, *, runtime: Any, force: bool = False, **kwargs: Any) -> None:
        super().__init__(runtime=runtime, **kwargs)
        if not runtime:
            raise ValueError("runtime must be a name, or what CreateRuntimeOperator returned; got nothing")
        self.force = force

    def _do(self) -> None:
        from trainer_core.cluster.kinds import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES

        found = self.runtime if isinstance(self.runtime, Mapping) else {"name": self.runtime}
        checks.check_object_name("runtime", found.get("name"))
        scope = {kind.kind: kind for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}.get(found.get("kind", ""))
        try:
            self._admin(found.get("namespace")).delete(found["name"], scope=scope, force=self.force)
        except RuntimeNotFoundError:
            self.log.info("runtime %s is gone already", found["name"])


def _manifest(given: Any) -> Any:
    found = given
    if isinstance(given, str):
        import yaml  # 20 ms that only those who give YAML shall pay

        try:
            found = yaml.safe_load(given)
        except yaml.YAMLError as error:
            problem = " ".join(str(error).split())
            raise ValueError(
                f"runtime is not YAML: {problem}; put templates such as '{{{{ ds }}}}' in quotes"
            ) from error
    named = isinstance(found, Mapping) and isinstance(found.get("metadata"), Mapping) and found["metadata"].get("name")
    if not named or found.get("kind") not in _KINDS:
        raise ValueError(f"runtime must be the manifest of a {' or '.join(_KINDS)} with metadata.name")
    # What is still to be filled in is judged when the task runs.
    if "{{" not in json.dumps(found, default=str):
        _check_rules(found)
    return found


def _check_rules(manifest: Mapping[str, Any]) -> None:
    from trainer_core.admin.validate import findings  # rules of runtimes, which no other DAG file needs

    wrong = next((each for each in findings(manifest) if each.severity == "error"), None)
    if wrong is not None:
        raise ValueError(f"runtime {manifest['metadata']['name']!r}: {wrong}")
