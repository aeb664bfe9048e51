"""Subcommand `doctor`: what the chosen backend needs, what it has of that, and how to get the rest."""

from __future__ import annotations

import typer

from trainer_core.cli import exits
from trainer_core.cli.output import Format, Output, print_data, print_table
from trainer_core.cli.runtimes import print_yaml
from trainer_core.doctor import Report, examine

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command(epilog=exits.HELP)(doctor)


def doctor(context: typer.Context, output: Output = Format.TABLE) -> int:
    """Say whether TrainJobs can run here, and what is missing; exit code 6 if they cannot. Creates nothing."""
    report = examine(context.obj.config)
    if output is Format.JSON:
        checks = [check.to_dict() for check in report.checks]
        print_data({"fit": report.fit, "checks": checks, "repair": list(report.repair)})
    else:
        _print(report)
    return exits.OK if report.fit else exits.UNAVAILABLE


def _print(report: Report) -> None:
    rows = [(check.what, check.state, check.found, check.cost) for check in report.checks]
    print_table(("CHECK", "STATE", "FOUND", "COST"), rows)
    if report.repair:
        print("\n# Grants what is not permitted. An administrator gives it to `kubectl apply -f -`:")
    for number, each in enumerate(report.repair):
        print("---" if number else "", end="\n" if number else "")
        print_yaml(each)
