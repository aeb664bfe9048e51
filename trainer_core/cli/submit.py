"""Subcommands that make TrainJobs: submit, initialize, render."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import yaml

from trainer_core.cli import definition, exits, following
from trainer_core.cli.output import Format, Output, print_data
from trainer_core.cli.settings import Settings
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.initializers import initializer_from_dict
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.trainers import CustomTrainer, CustomTrainerContainer
from trainer_core.waiting import failure_message

__all__ = ["finish", "register"]

Function = Annotated[str | None, typer.Argument(metavar="MODULE:FUNCTION", help="The training function.")]
File = Annotated[str | None, typer.Option("--file", "-f", help="A definition in YAML or JSON; - for standard input.")]
Arg = Annotated[
    list[str] | None, typer.Option("--arg", "-a", help="name=value for the function; as its annotations say.")
]
Runtime = Annotated[str | None, typer.Option(help="The blueprint; torch-distributed if not given.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes to train on.")]
Processes = Annotated[int | None, typer.Option("--procs-per-node", help="Processes on each node.")]
Image = Annotated[
    str | None, typer.Option(help="Container image: without a function it is run as it is, else the function in it.")
]
Package = Annotated[list[str] | None, typer.Option("--package", "-p", help="What pip installs first.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for the training processes.")]
Packaging = Annotated[str, typer.Option(help="How the function travels: source, reference or cloudpickle.")]
Dataset = Annotated[str | None, typer.Option(help="URI of the dataset to fetch first.")]
Model = Annotated[str | None, typer.Option(help="URI of the model to fetch first.")]
JobName = Annotated[str | None, typer.Option("--name", "-n", help="Name of the job; a random one if not given.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for its end.")]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Seconds to wait at most; as long as it takes if not given.")
]


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    for command in (submit, initialize, render):
        app.command(epilog=exits.HELP)(command)


def submit(
    context: typer.Context,
    function: Function = None,
    file: File = None,
    arg: Arg = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    procs_per_node: Processes = None,
    image: Image = None,
    package: Package = None,
    env: Env = None,
    packaging: Packaging = "source",
    dataset: Dataset = None,
    model: Model = None,
    name: JobName = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> int:
    """Submit a training function, a container image or a definition from a file, and print the job's name."""
    client: TrainerClient = context.obj.client
    flags = {"nodes": nodes, "procs_per_node": procs_per_node, "package": package, "env": env, "packaging": packaging}
    where = {"runtime": runtime, "image": image, "dataset": dataset, "model": model, "name": name}
    asked = _request(client, function, file, arg, {**flags, **where})
    return _submitted(client, asked, wait, timeout, output)


def initialize(
    context: typer.Context,
    dataset: Dataset = None,
    model: Model = None,
    name: JobName = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> int:
    """Fetch a dataset or a model once, for many TrainJobs."""
    if not dataset and not model:
        raise InvalidRequestError("initialize needs --dataset URI, --model URI, or both")
    client: TrainerClient = context.obj.client
    initializer = initializer_from_dict({"dataset": dataset, "model": model})
    asked = client.request(initializer=initializer, options=definition.options({"name": name}))
    return _submitted(client, asked, wait, timeout, output)


def render(
    context: typer.Context,
    function: Function = None,
    file: File = None,
    arg: Arg = None,
    runtime: Runtime = None,
    nodes: Nodes = None,
    procs_per_node: Processes = None,
    image: Image = None,
    package: Package = None,
    env: Env = None,
    packaging: Packaging = "source",
    dataset: Dataset = None,
    model: Model = None,
    name: JobName = None,
    output: Output = Format.TABLE,
) -> None:
    """Print what submitting would create; create nothing."""
    settings: Settings = context.obj
    flags = {"nodes": nodes, "procs_per_node": procs_per_node, "package": package, "env": env, "packaging": packaging}
    where = {"runtime": runtime, "image": image, "dataset": dataset, "model": model, "name": name}
    asked = _request(settings.client, function, file, arg, {**flags, **where})
    rendered = settings.client.render(asked)
    if output is Format.JSON:
        print_data(rendered)
    else:
        print(yaml.safe_dump(rendered, sort_keys=False, allow_unicode=True), end="")


def finish(client: TrainerClient, ref: TrainJobRef, timeout: float | None, output: Format) -> int:
    """Wait for a job, print what it left, and return the exit code."""
    try:
        outcome = following.wait(client, ref, timeout)
    except KeyboardInterrupt:
        print(f"trainjob: {ref.name} goes on; `trainjob wait {ref.name}` waits again", file=sys.stderr)
        raise
    if output is Format.JSON:
        print_data(outcome.to_dict())
    elif outcome.succeeded:
        print(f"{ref.name} Complete {outcome.result if outcome.result is not None else ''}".rstrip())
    if not outcome.succeeded:
        if outcome.diagnosis and outcome.diagnosis.traceback:
            print(outcome.diagnosis.traceback, file=sys.stderr)
        print(f"trainjob: {failure_message(outcome)}", file=sys.stderr)
    return exits.OK if outcome.succeeded else exits.FAILED


def _submitted(client: TrainerClient, asked: TrainJobRequest, wait: bool, timeout: float | None, output: Format) -> int:
    if timeout is not None and not wait:
        raise InvalidRequestError("--timeout goes with --wait; active_deadline_seconds of a definition limits the job")
    ref = client.submit(asked)
    if wait:
        return finish(client, ref, timeout, output)
    if output is Format.JSON:
        print_data(ref.to_dict())
    else:
        print(ref.name)
    return exits.OK


def _request(
    client: TrainerClient, function: str | None, file: str | None, arg: list[str] | None, flags: dict[str, Any]
) -> TrainJobRequest:
    if file is not None and function is not None:
        raise InvalidRequestError(f"give either {function} or --file; a definition names its function itself")
    if file is not None:
        _refuse_flags(arg, flags, "goes with module:function; in a definition write it into the file")
        data = {**definition.read(file), **({"name": flags["name"]} if flags["name"] else {})}
        return definition.request(client, data)
    if function is None and flags["image"] is None:
        raise InvalidRequestError(
            "give the training function as module:function, or --file with a definition, or --image to be run as it is"
        )
    sources = {role: flags[role] for role in ("dataset", "model") if flags[role]}
    return client.request(
        runtime=flags["runtime"],
        trainer=_container(arg, flags) if function is None else _trainer(function, arg, flags),
        initializer=initializer_from_dict(sources) if sources else None,
        options=definition.options({"name": flags["name"]}),
    )


def _trainer(function: str, arg: list[str] | None, flags: dict[str, Any]) -> CustomTrainer:
    load: Callable[[str], Any] = str if flags["packaging"] == "reference" else definition.function
    return CustomTrainer(
        func=load(function),
        func_args=_pairs("--arg", arg) or None,
        image=flags["image"],
        num_nodes=flags["nodes"],
        num_proc_per_node=flags["procs_per_node"],
        packages_to_install=flags["package"] or None,
        env=_pairs("--env", flags["env"]) or None,
        packaging=flags["packaging"],
    )


def _container(arg: list[str] | None, flags: dict[str, Any]) -> CustomTrainerContainer:
    of_functions = {key: flags[key] for key in ("package", "packaging")}
    _refuse_flags(arg, of_functions, "goes with module:function; TrainerArgs of a definition are for an image")
    return CustomTrainerContainer(
        image=flags["image"],
        num_nodes=flags["nodes"],
        num_proc_per_node=flags["procs_per_node"],
        env=_pairs("--env", flags["env"]) or None,
    )


def _refuse_flags(arg: list[str] | None, flags: dict[str, Any], why: str) -> None:
    given = [
        name for name, value in flags.items() if value and name != "name" and (name, value) != ("packaging", "source")
    ]
    if arg or given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in (["arg"] if arg else []) + given)
        raise InvalidRequestError(f"{named} {why}")


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    for text in texts or ():
        if "=" not in text.lstrip("="):
            raise InvalidRequestError(f"{option} must be name=value, got {text!r}")
    return dict(text.split("=", 1) for text in texts or ())
