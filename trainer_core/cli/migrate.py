"""Subcommand `migrate`: converts PyTorchJobs to TrainJobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli import exit_codes
from trainer_core.cli.output import print_yaml
from trainer_core.cli.runtimes import read_manifests
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.config import config_class

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
    convert = [resolve_name(kind.migration) for kind in map(config_class, OWN_BACKENDS) if kind.migration]
    documents = read_manifests(file)
    migrations = [found for document in documents for each in convert for found in each(document)]
    if not migrations:
        raise InvalidRequestError(f"{file} has no PyTorchJob (kubeflow.org/v1)")
    for migration in migrations:
        _comment("Not converted:", migration.lost)
        _comment("Converted differently:", [note for note in migration.notes if not note.lost])
        for manifest in filter(None, (migration.runtime, migration.trainjob)):
            print("---")
            print_yaml(manifest)
    lost = sum(len(migration.lost) for migration in migrations)
    if lost:
        print(f"trainjob: {lost} settings cannot be converted; see the comments in the output", file=sys.stderr)
    return exit_codes.BAD_INPUT if strict and lost else exit_codes.OK


def _comment(head: str, notes: Sequence[object]) -> None:
    for line in (head, *(f"  {note}" for note in notes)) if notes else ():
        print(f"# {line}")
