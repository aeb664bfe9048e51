"""What the components initialize_dataset and initialize_model do: fetch once, in a separate TrainJob."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kfp_components.step import outputs
from kfp_components.step.client import create_client
from kfp_components.step.executor_input import Task
from kfp_components.step.failure import print_diagnosis
from kfp_components.step.initializer_source import build_store_secrets, convert_to_s3
from kfp_components.step.metric_history import MetricHistory
from kfp_components.step.owner_reference import bind_to_run, find_run
from kfp_components.step.request import add_run_labels, build_request
from kfp_components.step.sigterm import ON_KILL, submit_job
from kfp_components.step.wait import wait_for_job
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.lifecycle import wait_state


def initialize(
    task: Task,
    *,
    storage_uri: str,
    ignore_patterns: list[str] | None = None,
    version: str | None = None,
    env: dict[str, str] | None = None,
    secret: str | None = None,
    secrets: dict[str, Any] | None = None,
    workspace: dict[str, Any] | None = None,
    backend: str = "local",
    backend_config: dict[str, Any] | None = None,
    job_name: str | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> None:
    """Fetch a dataset or a model; the components' docstrings describe the inputs."""
    validation.check_one_of("on_kill", on_kill, ON_KILL)
    role = "dataset" if "dataset" in task.artifacts else "model"
    artifact = task.get_artifact(role)
    # A pipeline parameter that is left empty is not a setting.
    env = {name: value for name, value in (env or {}).items() if value}
    if secret:
        secrets = {**build_store_secrets(secret), **(secrets or {})}
    fields = {"storage_uri": storage_uri, "ignore_patterns": ignore_patterns, "env": env, "secrets": secrets}
    source = {key: value for key, value in fields.items() if value}
    client = create_client(backend, backend_config)
    request: dict[str, Any] = {"initializer": {role: convert_to_s3(role, source)}}
    if workspace:
        request["workspace"] = workspace
    # A job with a given name may serve several runs.
    run = find_run(client, None)
    if job_name:
        run = replace(run, id=None)
    add_run_labels(request, run.id, on_kill)
    owned = build_request(request, job_name, artifact.uri, slug=role)
    with submit_job(client, owned, on_kill, run) as ref, bind_to_run(client, ref, run, on_kill):
        outcome = wait_for_job(client, next(iter(client.attempts(ref, timeout=timeout or None))), MetricHistory())
    task.write("job", ref.to_dict())
    task.write("status", outcome.status)
    task.write("result", dict(outcome.artifacts))
    print_diagnosis(outcome)
    wait_state.raise_if_failed(outcome)
    if role not in outcome.artifacts:
        raise InvalidRequestError(f"TrainJob {ref.name!r} does not say where the {role} lies; the backend must name it")
    uri = outcome.artifacts[role]
    artifact.metadata.update(job=ref.name, backend=ref.backend, storage_uri=storage_uri, uri=uri)
    if version:
        artifact.metadata["version"] = version
    task.write("uri", uri)
    outputs.place_artifact(artifact, uri)
