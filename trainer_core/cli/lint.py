"""Subcommand `lint`: what is wrong with the TrainJobs that files define, for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainer_core.cli import exits
from trainer_core.cli.output import Format, Output, print_data
from trainer_core.errors import InvalidRequestError
from trainer_core.lint import Found, Problem, definitions, problems

__all__ = ["register"]

Folder = Annotated[str, typer.Argument(metavar="PATH", help="A folder of Airflow DAGs, or one file.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command(epilog=exits.HELP)(lint)


def lint(
    path: Folder,
    server: Annotated[
        bool, typer.Option("--server", help="Ask each TrainJob's backend as well, by a dry run.")
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Say what is wrong with the TrainJobs of DAGs, one line each; exit code 2 if anything is. Runs nothing."""
    if not Path(path).exists():
        raise InvalidRequestError(f"{path} does not exist; give a folder of DAGs, or a file")
    found = list(definitions(path))
    wrong = list(problems(found, server=server))
    if output is Format.JSON:
        print_data([problem.to_dict() for problem in wrong])
    else:
        print("".join(f"{problem}\n" for problem in wrong), end="")
    jobs = [each for each in found if each.request]
    print(f"trainjob: {len(jobs)} TrainJobs, problems: {len(wrong)}", file=sys.stderr)
    for each in jobs if server else ():
        if each.unknown:
            said = f"the server was not asked, since {_named(each)} is known only when it runs"
            print(f"trainjob: {Problem(each.file, each.place, said)}", file=sys.stderr)
    return exits.BAD_INPUT if wrong else exits.OK


def _named(found: Found) -> str:
    return ", ".join(".".join(path) for path in found.unknown)
