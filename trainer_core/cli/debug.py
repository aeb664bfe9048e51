"""Subcommand that runs the function of a TrainJob on this machine under a debugger."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Annotated

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli import exit_codes
from trainer_core.cli.options import NEWEST
from trainer_core.client import TrainerClient, debugging


def debug(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the TrainJob.")],
    from_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="[STEP]", help="Start from a copy of its newest checkpoint, or of that of STEP."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="PATH", help="File or folder that replaces its dataset. Default: its own.")
    ] = None,
    break_at: Annotated[
        str | None, typer.Option("--break", metavar="FILE:LINE", help="Stop at this line, such as train.py:12.")
    ] = None,
    pdb: Annotated[bool, typer.Option("--pdb/--no-pdb", help="Start pdb at the line that raises an exception.")] = True,
    on: Annotated[
        str, typer.Option(help="debug: rank 0 in this process. local: a job of several processes, without pdb.")
    ] = "debug",
    nodes: Annotated[int | None, typer.Option(help="With --on local: number of nodes, one process each.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="Environment variable of the function: that of this shell, or NAME=VALUE; repeatable. Secrets that "
            "are not set are asked for.",
        ),
    ] = None,
) -> int:
    """Run the function of a failed TrainJob on this machine, rank 0 alone, under pdb, and compare how it ends.

    Nothing of the TrainJob changes. What this machine lacks of it is printed. Exits with 0 if the function returns,
    with 1 if it fails as the TrainJob did, with 7 if it fails in another way. The code of the TrainJob runs with your
    rights.
    """
    client: TrainerClient = context.obj.client
    ref = client.get_job_ref(name)
    secrets = dict(debugging.list_secrets(client.get_job_request(ref))) if env else {}
    result = client.debug(
        ref,
        from_checkpoint=_parse_step(from_checkpoint),
        dataset=dataset,
        break_at=break_at,
        pdb=pdb,
        on=on,
        nodes=nodes,
        env=_parse_env(env or [], secrets),
    )
    print(f"trainjob: {result}", file=sys.stderr)
    if result.outcome.succeeded:
        return exit_codes.OK
    return exit_codes.FAILED if result.same_error else exit_codes.ANOTHER_FAILURE


def _parse_step(text: str | None) -> bool | int:
    if text is None or text == NEWEST:
        return text is not None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequestError(f"--from-checkpoint must be the step of a checkpoint, got {text[:50]!r}")
    return int(text)


def _parse_env(values: list[str], secrets: Collection[str]) -> dict[str, str]:
    found = {}
    for each in values:
        name, is_given, value = each.partition("=")
        if not name:
            raise InvalidRequestError(f"--env must be NAME or NAME=VALUE, got {each[:100]!r}")
        if not is_given:
            if name not in os.environ:
                raise InvalidRequestError(
                    f"--env {name[:100]}: this shell has no such variable; export it, or leave it out"
                )
            value = os.environ[name]
        elif name in secrets:
            raise InvalidRequestError(
                f"--env {name}=…: its value is a secret, and every user of this machine can read a command line; "
                f"export {name} and give --env {name}"
            )
        found[name] = value
    return found
