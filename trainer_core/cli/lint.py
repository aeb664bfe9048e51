"""Subcommand `lint`: checks the TrainJobs of DAG files, for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli import exit_codes
from trainer_core.cli.output import OutputFormat, OutputOption, print_json
from trainer_core.frontend.lint import Definition, Problem, find_definitions, find_problems, find_warnings

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Folder of Airflow DAGs, or one file.")]


def lint(
    path: PathArgument,
    server: Annotated[
        bool, typer.Option("--server", help="Also validate each TrainJob by a dry run on its backend.")
    ] = False,
    connections: Annotated[
        str | None,
        typer.Option(
            metavar="ID[,ID]",
            help="Airflow connections. Each TrainJob whose DAG names no backend is checked for the backend of each.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Check the TrainJobs of DAGs without running them.

    Prints one line for each problem. Exit code 2 if there are problems. What is wrong in some runs only is a warning on
    standard error.
    """
    if not Path(path).exists():
        raise InvalidRequestError(f"{path} does not exist; pass a folder of DAGs or a file")
    ids = [each.strip() for each in (connections or "").split(",") if each.strip()]
    if connections is not None and not ids:
        raise InvalidRequestError("--connections needs the ids of Airflow connections, such as laptop,cluster")
    definitions = list(find_definitions(path, ids))
    problems = list(find_problems(definitions, server=server))
    if output is OutputFormat.JSON:
        print_json([problem.to_dict() for problem in problems])
    else:
        print("".join(f"{problem}\n" for problem in problems), end="")
    for definition in definitions:
        for warning in find_warnings(definition):
            print(f"trainjob: warning: {Problem(definition.file, definition.location, warning)}", file=sys.stderr)
    jobs = [definition for definition in definitions if definition.request]
    print(f"trainjob: {len(jobs)} TrainJobs, problems: {len(problems)}", file=sys.stderr)
    for job in jobs if server else ():
        if job.unknown:
            message = f"no dry run, because the value of {_format_unknown(job)} is known only at run time"
            print(f"trainjob: {Problem(job.file, job.location, message)}", file=sys.stderr)
    return exit_codes.BAD_INPUT if problems else exit_codes.OK


def _format_unknown(definition: Definition) -> str:
    return ", ".join(".".join(path) for path in definition.unknown)
