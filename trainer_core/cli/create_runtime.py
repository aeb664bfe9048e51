"""Subcommand that builds a runtime from options and creates it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from trainer_core.admin import build
from trainer_core.admin.blueprint import Blueprint, Coscheduling, Gang, Initializer, Pod, Storage, Volcano
from trainer_core.admin.findings import ERROR
from trainer_core.admin.validate import findings
from trainer_core.cli.output import print_data
from trainer_core.cli.runtimes import Form, administrator, print_yaml
from trainer_core.errors import InvalidRequestError

__all__ = ["register"]

Kind = Enum("Kind", {name: name for name in build.KINDS}, type=str)  # type: ignore[misc]


class Together(str, Enum):
    """Who starts all pods of a job together."""

    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"


Texts = list[str] | None


def register(group: typer.Typer) -> None:
    """Add the subcommand."""
    group.command()(create)


def create(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="What the nodes run with.")],
    name: Annotated[str, typer.Argument(help="Name of the runtime.")],
    image: Annotated[str | None, typer.Option(help="Image of the nodes; that of Trainer's own runtime.")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of a TrainJob that does not say.")] = 1,
    namespace: Annotated[str | None, typer.Option(help="Make it a TrainingRuntime of this namespace.")] = None,
    label: Annotated[Texts, typer.Option("--label", "-l", help="name=value.")] = None,
    command: Annotated[Texts, typer.Option(help="A word of the command; again for the next.")] = None,
    env: Annotated[Texts, typer.Option("--env", "-e", help="NAME=VALUE for the training processes.")] = None,
    resource: Annotated[Texts, typer.Option("--resource", "-r", help="Of each node: gpu=2, memory=64Gi.")] = None,
    node_selector: Annotated[Texts, typer.Option(help="name=value of the machines to run on.")] = None,
    toleration: Annotated[Texts, typer.Option(help="key[=value][:effect] of a taint to bear.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Whom the pods run as.")] = None,
    gang: Annotated[Together | None, typer.Option(help="Start all pods of a job together.")] = None,
    queue: Annotated[str | None, typer.Option(help="Volcano queue.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Fetch a dataset first; this, if a TrainJob names none.")] = None,
    model: Annotated[str | None, typer.Option(help="Fetch a model first; this, if a TrainJob names none.")] = None,
    claim: Annotated[str | None, typer.Option(help="Fetch into this PersistentVolumeClaim.")] = None,
    storage: Annotated[str, typer.Option(help="Fetch into a new claim of this size.")] = "20Gi",
    access_mode: Annotated[str, typer.Option(help="Of it; ReadWriteMany for several nodes.")] = "ReadWriteOnce",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifest; ask no cluster.")] = False,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print the manifest.")] = Form.TABLE,
) -> None:
    """Create a runtime from options; volumes and the like are for YAML and apply, or for Python."""
    selector = _pairs("--node-selector", node_selector)
    pod = Pod(selector, [_toleration(each) for each in toleration or ()], service_account)
    blueprint = Blueprint(
        name=name,
        image=image,
        num_nodes=nodes,
        namespace=namespace,
        labels=_pairs("--label", label),
        command=command or (),
        env=_pairs("--env", env),
        resources=_pairs("--resource", resource),
        pod=pod,
        gang=_gang(gang, queue),
    )
    runtime = _built(kind, blueprint, dataset, model, Storage(claim, storage, access_mode))
    if dry_run:
        _refuse_errors(runtime)
    else:
        administrator(context.obj).create(runtime)
    _print(runtime, Form.YAML if dry_run and output is Form.TABLE else output)


def _print(runtime: dict[str, Any], output: Form) -> None:
    if output is Form.JSON:
        print_data(runtime)
    elif output is Form.YAML:
        print_yaml(runtime)
    else:
        print(f"{runtime['kind']} {runtime['metadata']['name']} created")


def _built(
    kind: Kind, blueprint: Blueprint, dataset: str | None, model: str | None, storage: Storage
) -> dict[str, Any]:
    steps = {"dataset": Initializer(dataset) if dataset else None, "model": Initializer(model) if model else None}
    if kind.value == "torchtune":
        return build.torchtune(blueprint, **steps, storage=storage)
    runtime = build.KINDS[kind.value](blueprint)
    return build.with_initializers(runtime, **steps, storage=storage) if dataset or model else runtime


def _gang(together: Together | None, queue: str | None) -> Gang | None:
    if queue and together is not Together.VOLCANO:
        raise InvalidRequestError("--queue goes with --gang volcano")
    return {None: None, Together.COSCHEDULING: Coscheduling(), Together.VOLCANO: Volcano(queue)}[together]


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**found, "effect": effect} if effect else found


def _refuse_errors(runtime: dict[str, Any]) -> None:
    errors = [each for each in findings(runtime) if each.severity == ERROR]
    if errors:
        raise InvalidRequestError(f"the runtime breaks rule {errors[0].rule}: {errors[0].message}")


def _pairs(option: str, texts: Texts) -> dict[str, str]:
    for text in texts or ():
        if "=" not in text.lstrip("="):
            raise InvalidRequestError(f"{option} must be name=value, got {text!r}")
    return dict(text.split("=", 1) for text in texts or ())
