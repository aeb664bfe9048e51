"""Subcommand `lint`: checks the TrainJobs of DAG files, a function or a definition, for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainer_core.base.errors import InvalidRequestError, TrainerError
from trainer_core.cli import exit_codes, submit
from trainer_core.cli.output import OutputFormat, OutputOption, print_json
from trainer_core.frontend.lint import Definition, Problem, find_definitions, find_problems, find_warnings

PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH|MODULE:FUNCTION",
        help="Folder of Airflow DAGs, one file of them, a definition in YAML or JSON, or a training function.",
    ),
]


def lint(
    context: typer.Context,
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
    arg: submit.Arg = None,
    package: submit.Package = None,
    requirements: submit.Requirements = None,
    extra: submit.Extra = None,
    code: submit.Code = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Check the TrainJobs of DAGs, or a function or definition, without running them.

    Prints one line for each problem. Exit code 2 if there are problems. What is wrong in some runs only is a warning on
    standard error.
    """
    is_function = ":" in path and not Path(path).exists()
    is_definition = is_function or path.endswith((".yaml", ".yml", ".json"))
    if not is_function and not Path(path).exists():
        raise InvalidRequestError(f"{path} does not exist; pass a folder of DAGs or a file")
    ids = [each.strip() for each in (connections or "").split(",") if each.strip()]
    if connections is not None and not ids:
        raise InvalidRequestError("--connections needs the ids of Airflow connections, such as laptop,cluster")
    flags = submit.Flags(
        function=path if is_function else None,
        file=None if is_function else path,
        arg=arg,
        package=package,
        requirements=requirements,
        extra=extra,
        code=code,
    )
    definitions = [_read_definition(context, path, flags)] if is_definition else list(find_definitions(path, ids))
    problems = list(find_problems(definitions, server=server))
    if output is OutputFormat.JSON:
        print_json([problem.to_dict() for problem in problems])
    else:
        print("".join(f"{problem}\n" for problem in problems), end="")
    for definition in definitions:
        for warning in find_warnings(definition):
            print(f"trainjob: warning: {Problem(definition.file, definition.location, warning)}", file=sys.stderr)
    jobs = [definition for definition in definitions if definition.request]
    print(f"trainjob: {len(jobs)} TrainJob{'s' * (len(jobs) != 1)}, problems: {len(problems)}", file=sys.stderr)
    for job in jobs if server else ():
        if job.unknown:
            message = f"no dry run, because the value of {_format_unknown(job)} is known only at run time"
            print(f"trainjob: {Problem(job.file, job.location, message)}", file=sys.stderr)
    return exit_codes.BAD_INPUT if problems else exit_codes.OK


def _read_definition(context: typer.Context, path: str, flags: submit.Flags) -> Definition:
    try:
        request = flags.build_request(context.obj.client)
    except (TrainerError, ValueError) as error:
        return Definition(path, error=str(error))
    return Definition(path, request=request.to_dict(), client=lambda: context.obj.client)


def _format_unknown(definition: Definition) -> str:
    return ", ".join(".".join(path) for path in definition.unknown)
