"""Subcommand `migrate`: converts the Training Operator's PyTorchJobs to TrainJobs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli import exit_codes
from trainer_core.cli.output import print_yaml
from trainer_core.cli.runtimes import read_manifests
from trainer_core.runtime_admin.migrate import Migration, Note, iterate_pytorch_jobs, migrate_pytorch_job

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="YAML file with PyTorchJobs; - for standard input.")]


def migrate(
    file: FileArgument,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 2 if a setting cannot be converted.")
    ] = False,
) -> int:
    """Print the TrainJob that is equivalent to a PyTorchJob, and the runtime it needs; comments list the differences.

    Needs no cluster. To validate the output, run `trainjob migrate job.yaml | kubectl apply --dry-run=server -f -`.
    """
    jobs = [job for document in read_manifests(file) for job in iterate_pytorch_jobs(document)]
    if not jobs:
        raise InvalidRequestError(f"{file} has no PyTorchJob (kubeflow.org/v1)")
    migrations = [_migrate(job) for job in jobs]
    for migration in migrations:
        _print(migration)
    lost = sum(len(migration.lost) for migration in migrations)
    if lost:
        print(f"trainjob: {lost} settings cannot be converted; see the comments in the output", file=sys.stderr)
    return exit_codes.BAD_INPUT if strict and lost else exit_codes.OK


def _migrate(job: dict[str, Any]) -> Migration:
    try:
        return migrate_pytorch_job(job)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        name = (job.get("metadata") or {}).get("name")
        raise InvalidRequestError(
            f"PyTorchJob {name!r} is not valid ({type(error).__name__}: {error}); "
            "check it with kubectl apply --dry-run=server"
        ) from error


def _print(migration: Migration) -> None:
    _comment("Not converted:", migration.lost)
    _comment("Converted differently:", [note for note in migration.notes if not note.lost])
    for manifest in (migration.runtime, migration.trainjob):
        if manifest:
            print("---")
            print_yaml(manifest)


def _comment(head: str, notes: list[Note]) -> None:
    for line in (head, *(f"  {note}" for note in notes)) if notes else ():
        print(f"# {line}")
