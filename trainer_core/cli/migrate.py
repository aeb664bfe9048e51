"""Subcommand `migrate`: PyTorchJobs of the Training Operator become TrainJobs, as YAML to look at and apply."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from trainer_core.admin.migrate import Migration, Note, migrate, pytorch_jobs
from trainer_core.cli import exits
from trainer_core.cli.runtimes import manifests_of, print_yaml
from trainer_core.errors import InvalidRequestError

__all__ = ["register"]

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML with PyTorchJobs, or - for standard input.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("migrate", epilog=exits.HELP)(print_migrated)


def print_migrated(
    file: File,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 2 if anything cannot be carried over.")] = False,
) -> int:
    """Print the TrainJob that does what a PyTorchJob does, and the runtime it needs; comments say what is different.

    No cluster is asked: `trainjob migrate job.yaml | kubectl apply --dry-run=server -f -` is the last check.
    """
    jobs = [job for document in manifests_of(file) for job in pytorch_jobs(document)]
    if not jobs:
        raise InvalidRequestError(f"{file} has no PyTorchJob (kubeflow.org/v1)")
    migrations = [_migrated(job) for job in jobs]
    for migration in migrations:
        _print(migration)
    lost = sum(len(migration.lost) for migration in migrations)
    if lost:
        print(f"trainjob: {lost} settings could not be carried over; comments name them", file=sys.stderr)
    return exits.BAD_INPUT if strict and lost else exits.OK


def _migrated(job: dict[str, Any]) -> Migration:
    try:
        return migrate(job)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        name = (job.get("metadata") or {}).get("name")
        raise InvalidRequestError(
            f"PyTorchJob {name!r} is not in the shape that the operator takes ({type(error).__name__}: {error}); "
            "check it with kubectl apply --dry-run=server"
        ) from error


def _print(migration: Migration) -> None:
    _comment("Not carried over:", migration.lost)
    _comment("Done in another way:", [note for note in migration.notes if not note.lost])
    for each in (migration.runtime, migration.trainjob):
        if each:
            print("---")
            print_yaml(each)


def _comment(head: str, notes: list[Note]) -> None:
    for line in (head, *(f"  {note}" for note in notes)) if notes else ():
        print(f"# {line}")
