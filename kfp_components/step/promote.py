"""What the promote component does: register a model, and move the alias to it if it is better than the champion."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

from kfp_components.step.executor_input import Artifact, Task
from trainer_core.base.errors import InvalidRequestError
from trainer_core.tracking.model_registry import Candidate, FolderRegistry, Mode, build_partition_alias
from trainer_core.tracking.registries import open_registry


def promote(
    task: Task,
    *,
    model: Annotated[Artifact, "Model"],
    metric: float,
    registry: str,
    run_id: str,
    higher_is_better: bool = True,
    model_name: str | None = None,
    alias: str = "champion",
    min_delta: float = 0.0,
    mode: str | None = None,
    metric_name: str | None = None,
    replace_metric: bool = False,
    partition: str | None = None,
) -> None:
    """Promote a model; the component's docstring describes the inputs."""
    target = open_registry(registry)
    moved = build_partition_alias(alias, partition)
    if model_name is None and not isinstance(target, FolderRegistry):
        raise InvalidRequestError(f"model_name is missing: the registry at {registry} has many models; name this one")
    path, recorded = model.require_path(), str(model.metadata.get("uri") or "")
    run_url = str(model.metadata.get("run_url") or "")
    is_same_server = run_url and target.has_origin_of(run_url)
    candidate = Candidate(
        # A model of another origin than a TrainJob is identified by the URI that KFP gave it.
        job=str(model.metadata.get("job") or "") or model.uri,
        uri=recorded,
        metric=metric_name or "metric",
        value=metric,
        uid=str(model.metadata.get("uid") or "") or None,
        run_id=run_url.rpartition("/runs/")[2] if is_same_server else None,
        stamp=str(model.metadata.get("stamp") or "") or None,
        finished_at=str(model.metadata.get("finished_at") or "") or None,
    )
    if path.exists():  # A copy, which KFP never changes.
        candidate = replace(candidate, uri=path.absolute().as_uri(), stamp=None, finished_at=None)
    elif not recorded:
        raise InvalidRequestError(
            f"there is no model at {path}; let the training function return {{'artifacts': {{'model': uri}}}}"
        )
    elif isinstance(target, FolderRegistry):
        candidate.check_files()
        raise InvalidRequestError(
            f"model: its files are at {recorded} and not in the artifact; on a cluster give train_task and wait_task "
            "an output_path, and let the training function write the model to output_path()"
        )
    with target:
        promotion = target.promote_candidate(
            candidate,
            model=model_name or "",
            mode=cast("Mode", mode or ("max" if higher_is_better else "min")),
            min_delta=min_delta,
            alias=moved,
            replace_metric=replace_metric,
        )
    task.write("promoted", promotion.promoted)
    task.write("uri", promotion.uri)
    task.write("version", promotion.version)
    verdict = "promoted" if promotion.promoted else f"not promoted, for the {moved} has {promotion.before}"
    print(f"model {promotion.version} with {metric} is {verdict}: {promotion.uri}")
