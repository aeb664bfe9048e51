"""Subcommand `doctor`: checks the requirements of the backend, of checkpoints, of code and of tracking."""

from __future__ import annotations

from typing import Annotated

import typer

from trainer_core.base import validation
from trainer_core.cli import exit_codes
from trainer_core.cli.output import OutputFormat, OutputOption, print_json, print_table, print_yaml
from trainer_core.frontend.preflight import check_backend
from trainer_core.model.preflight import PreflightReport


def doctor(
    context: typer.Context,
    checkpoints_uri: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            metavar="URI",
            help="Place of checkpoints to check (file://, pvc:// or s3://). Default: that of the backend.",
        ),
    ] = None,
    code_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Place of large code to check (s3:// or file://). Default: that of the backend's configuration.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Check whether TrainJobs can run on the backend, be tracked, keep checkpoints and get code; print what is missing.

    Exit code 6 if they cannot run. Leaves nothing behind.
    """
    if checkpoints_uri is not None:
        validation.check_place_uri("--checkpoints", checkpoints_uri)
    if code_uri is not None:
        validation.check_code_uri("--code-uri", code_uri)
    report = check_backend(context.obj.config, checkpoints_uri, code_uri)
    if output is OutputFormat.JSON:
        checks = [check.to_dict() for check in report.checks]
        print_json({"fit": report.fit, "checks": checks, "repair": list(report.repair)})
    else:
        _print_report(report)
    return exit_codes.OK if report.fit else exit_codes.UNAVAILABLE


def _print_report(report: PreflightReport) -> None:
    rows = [(check.what, check.state, check.found, check.cost) for check in report.checks]
    print_table(("CHECK", "STATE", "FOUND", "COST"), rows)
    if report.repair:
        print("\n# RBAC objects with the missing permissions; an administrator applies them with `kubectl apply -f -`:")
    for number, manifest in enumerate(report.repair):
        print("---" if number else "", end="\n" if number else "")
        print_yaml(manifest)
