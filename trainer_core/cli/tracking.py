"""Subcommands for MLflow runs and model registries: runs, promote, models."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli.output import OutputFormat, OutputOption, format_time, print_json, print_table
from trainer_core.client import TrainerClient

if TYPE_CHECKING:
    from trainer_core.tracking.model_registry import ModelRegistry

Registry = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="MLflow server or folder. Default: MLFLOW_TRACKING_URI, or the folder registry in TRAINJOB_HOME.",
    ),
]
Alias = Annotated[str, typer.Option(help="Alias that names the best version.")]


class Mode(str, Enum):
    """Which values of a metric are better."""

    MAX = "max"
    MIN = "min"


def runs(
    experiment: Annotated[
        str | None, typer.Option(help="Name of the experiment. Default: MLFLOW_EXPERIMENT_NAME, or trainjob.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the MLflow runs of TrainJobs, newest first."""
    from trainer_core.tracking.mlflow_api import MlflowApi  # Other commands do not need it.
    from trainer_core.tracking.server import MlflowServer

    server = MlflowServer.from_environment()
    if server is None:
        raise InvalidRequestError("no MLflow server is configured; set MLFLOW_TRACKING_URI to its http(s) address")
    name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "trainjob"
    api = MlflowApi(server)
    try:
        found = api.find_experiment_id(name)
        if experiment and not found:
            raise InvalidRequestError(f"MLflow has no experiment {experiment!r}; pass the name of one of {server.uri}")
        tracked = api.search_runs([found], "tags.`trainjob.name` != ''") if found else []
    finally:
        api.close()
    newest_first = [(run, server.get_run_url(run.info.experiment_id, run.id)) for run in reversed(tracked)]
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "job": run.tags.get("trainjob.name", ""),
                    "status": run.info.status,
                    "started": run.info.start_time,
                    "metrics": run.metrics,
                    "url": url,
                }
                for run, url in newest_first
            ]
        )
        return
    rows = [
        (
            run.tags.get("trainjob.name", ""),
            run.info.status,
            format_time(datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc)),
            " ".join(f"{key}={value:g}" for key, value in sorted(run.metrics.items())),
            url,
        )
        for run, url in newest_first
    ]
    print_table(("JOB", "STATUS", "STARTED", "METRICS", "URL"), rows, folded=2)


def promote(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a TrainJob that is Complete.")],
    model: Annotated[str, typer.Option(help="Name of the model in the registry.")],
    metric: Annotated[str, typer.Option(help="Metric by which models are compared.")],
    mode: Annotated[Mode, typer.Option(help="Whether the largest or the smallest value is best.")] = Mode.MAX,
    min_delta: Annotated[float, typer.Option(min=0, help="By how much the metric must be better.")] = 0.0,
    alias: Alias = "champion",
    partition: Annotated[
        str | None, typer.Option(metavar="KEY", help="Partition of which the alias names the best version.")
    ] = None,
    artifact: Annotated[str, typer.Option(help="Artifact of the TrainJob that is the model.")] = "model",
    registry: Registry = None,
    replace_metric: Annotated[
        bool, typer.Option("--replace-metric", help="Compare this metric from now on, if the alias compares another.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Register the model of a TrainJob, and move the alias to it if it is better; print what was decided."""
    client: TrainerClient = context.obj.client
    promotion = client.promote(
        name,
        model=model,
        metric=metric,
        mode="max" if mode is Mode.MAX else "min",
        min_delta=min_delta,
        alias=alias,
        partition=partition,
        artifact=artifact,
        registry=registry,
        replace_metric=replace_metric,
    )
    if output is OutputFormat.JSON:
        print_json(promotion.to_dict())
        return
    verdict = "promoted" if promotion.promoted else "not promoted"
    before = "no model before" if promotion.before is None else f"before {promotion.before:g}"
    print(
        f"{verdict}: version {promotion.version} of {model}, {metric} {promotion.metric:g} ({before}) {promotion.uri}"
    )


def models(
    model: Annotated[str | None, typer.Argument(help="Name of a model; without it the models are listed.")] = None,
    registry: Registry = None,
    rollback: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Move the alias back to this version.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Move the alias to the best version.")] = False,
    alias: Alias = "champion",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the models of a registry or the versions of one model; roll back its alias."""
    from trainer_core.tracking.registries import open_registry  # Other commands do not need it.

    with open_registry(registry) as target:
        _print_models(target, model, rollback, repair, alias, output)


def _print_models(
    target: ModelRegistry, model: str | None, rollback: str | None, repair: bool, alias: str, output: OutputFormat
) -> None:
    if model is None:
        if rollback or repair:
            raise InvalidRequestError("--rollback and --repair need the name of a model")
        names = target.list_models()
        if output is OutputFormat.JSON:
            print_json(names)
        else:
            print_table(("MODEL",), [(name,) for name in names])
        return
    if rollback:
        target.rollback(model, rollback, alias)
    if repair:
        target.repair(model, alias)
    versions = target.list_versions(model)
    if not versions:
        raise InvalidRequestError(f"the registry has no model {model!r}; `trainjob models` lists those that it has")
    if output is OutputFormat.JSON:
        print_json([vars(each) for each in versions])
        return
    rows = [
        (each.version, each.metric, ", ".join(each.aliases), "yes" if each.demoted else "", each.uri)
        for each in reversed(versions)
    ]
    print_table(("VERSION", "METRIC", "ALIASES", "DEMOTED", "URI"), rows)
