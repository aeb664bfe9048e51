"""Subcommand `runtimes create`: builds a runtime from options and creates it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli.options import parse_key_values
from trainer_core.cli.output import print_json, print_yaml
from trainer_core.cli.runtimes import ManifestFormat, create_runtime_admin, group
from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.diagnostics import ERROR
from trainer_core.runtime_admin.runtime_builder import (
    Coscheduling,
    InitializerParameters,
    PodGroupPolicy,
    PodParameters,
    RuntimeParameters,
    StorageParameters,
    Volcano,
)
from trainer_core.runtime_admin.validate import validate_runtime

Kind = Enum("Kind", {name: name for name in runtime_builder.BUILDERS}, type=str)  # type: ignore[misc]


class GangScheduler(str, Enum):
    """Scheduler that starts all pods of a TrainJob together."""

    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"


Values = list[str] | None


@group.command()
def create(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="Framework of the runtime.")],
    name: Annotated[str, typer.Argument(help="Name of the runtime.")],
    image: Annotated[
        str | None, typer.Option(help="Container image of the nodes. Default: that of Trainer's runtime.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes of TrainJobs that do not set it.")] = 1,
    namespace: Annotated[
        str | None, typer.Option(help="Create a TrainingRuntime in this namespace instead of a ClusterTrainingRuntime.")
    ] = None,
    label: Annotated[Values, typer.Option("--label", "-l", help="Label: name=value; repeatable.")] = None,
    command: Annotated[Values, typer.Option(help="One word of the command; repeat for the next word.")] = None,
    env: Annotated[
        Values, typer.Option("--env", "-e", help="Environment variable of the nodes: NAME=VALUE; repeatable.")
    ] = None,
    resource: Annotated[
        Values,
        typer.Option("--resource", "-r", help="Resource of each node, such as gpu=2 or memory=64Gi; repeatable."),
    ] = None,
    node_selector: Annotated[
        Values, typer.Option(help="Label of the Kubernetes nodes to run on: name=value; repeatable.")
    ] = None,
    toleration: Annotated[Values, typer.Option(help="Tolerated taint: key[=value][:effect]; repeatable.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Service account of the pods.")] = None,
    gang: Annotated[
        GangScheduler | None, typer.Option(help="Scheduler that starts all pods of a TrainJob together.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Volcano queue; needs --gang volcano.")] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            help="Restarts of all nodes together after one has failed; 0 leaves them to RestartPolicy. "
            "Default: 3 with torch, jax and xgboost."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Add a dataset initializer; URI for TrainJobs that name no dataset.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Add a model initializer; URI for TrainJobs that name no model.")
    ] = None,
    claim: Annotated[str | None, typer.Option(help="Existing PersistentVolumeClaim for fetched files.")] = None,
    storage: Annotated[
        str, typer.Option(help="Size of a new PersistentVolumeClaim for fetched files, if --claim is not set.")
    ] = "20Gi",
    access_mode: Annotated[
        str, typer.Option(help="Access mode of the new claim; ReadWriteMany for several nodes.")
    ] = "ReadWriteOnce",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifest without creating it; needs no cluster.")
    ] = False,
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="Output format: table, json or yaml.")
    ] = ManifestFormat.TABLE,
) -> None:
    """Create a runtime from options. For other fields, write YAML and use `trainjob runtimes apply`."""
    selector = parse_key_values("--node-selector", node_selector)
    pod = PodParameters(selector, [_parse_toleration(each) for each in toleration or ()], service_account)
    parameters = RuntimeParameters(
        name=name,
        image=image,
        num_nodes=nodes,
        namespace=namespace,
        labels=parse_key_values("--label", label),
        command=command or (),
        env=parse_key_values("--env", env),
        resources=parse_key_values("--resource", resource),
        pod=pod,
        gang=_build_pod_group_policy(gang, queue),
        restarts=restarts,
    )
    runtime = _build_runtime(kind, parameters, dataset, model, StorageParameters(claim, storage, access_mode))
    if dry_run:
        _reject_errors(runtime)
    else:
        create_runtime_admin(context.obj).create(runtime)
    _print_runtime(runtime, ManifestFormat.YAML if dry_run and output is ManifestFormat.TABLE else output)


def _print_runtime(runtime: dict[str, Any], output: ManifestFormat) -> None:
    if output is ManifestFormat.JSON:
        print_json(runtime)
    elif output is ManifestFormat.YAML:
        print_yaml(runtime)
    else:
        print(f"{runtime['kind']} {runtime['metadata']['name']} created")


def _build_runtime(
    kind: Kind, parameters: RuntimeParameters, dataset: str | None, model: str | None, storage: StorageParameters
) -> dict[str, Any]:
    steps = {
        "dataset": InitializerParameters(dataset) if dataset else None,
        "model": InitializerParameters(model) if model else None,
    }
    builder = runtime_builder.BUILDERS[kind.value]
    if kind.value in runtime_builder.WITH_INITIALIZERS:
        return builder(parameters, **steps, storage=storage)
    runtime = builder(parameters)
    return runtime_builder.add_initializers(runtime, **steps, storage=storage) if dataset or model else runtime


def _build_pod_group_policy(scheduler: GangScheduler | None, queue: str | None) -> PodGroupPolicy | None:
    if queue and scheduler is not GangScheduler.VOLCANO:
        raise InvalidRequestError("--queue needs --gang volcano")
    return {None: None, GangScheduler.COSCHEDULING: Coscheduling(), GangScheduler.VOLCANO: Volcano(queue)}[scheduler]


def _parse_toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    toleration = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**toleration, "effect": effect} if effect else toleration


def _reject_errors(runtime: dict[str, Any]) -> None:
    errors = [each for each in validate_runtime(runtime) if each.severity == ERROR]
    if errors:
        raise InvalidRequestError(f"the runtime violates rule {errors[0].rule}: {errors[0].message}")
