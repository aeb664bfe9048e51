"""Subcommand `doctor`: what the chosen backend needs, what it has of that, and how to get the rest."""

from __future__ import annotations

import importlib.util
import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata

import typer

from trainer_core.admin.validate import findings
from trainer_core.backends.kubernetes.doctor import LIMITED, MISSING, OK, Check, Report, examine
from trainer_core.cli import exits
from trainer_core.cli.output import Format, Output, print_data, print_table
from trainer_core.cli.runtimes import print_yaml
from trainer_core.cli.settings import Settings
from trainer_core.configs import KubernetesBackendConfig, LocalProcessBackendConfig

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command(epilog=exits.HELP)(doctor)


def doctor(context: typer.Context, output: Output = Format.TABLE) -> int:
    """Say whether TrainJobs can run here, and what is missing; exit code 6 if they cannot. Creates nothing."""
    report = _examined(context.obj)
    if output is Format.JSON:
        checks = [check.to_dict() for check in report.checks]
        print_data({"fit": report.fit, "checks": checks, "repair": list(report.repair)})
    else:
        _print(report)
    return exits.OK if report.fit else exits.UNAVAILABLE


def _examined(settings: Settings) -> Report:
    config = settings.config
    if isinstance(config, KubernetesBackendConfig):
        return examine(config, findings)
    if isinstance(config, LocalProcessBackendConfig):
        return Report((*_interpreter(), _home(config)))
    # Says what is missing of a backend that cannot be used at all.
    settings.client.list_runtimes()
    return Report(tuple(_interpreter()))


def _interpreter() -> Iterator[Check]:
    yield Check("python", OK, platform.python_version())
    if importlib.util.find_spec("torch") is None:
        yield Check("torch", LIMITED, "is not installed", "functions cannot use it: pip install torch")
    else:
        yield Check("torch", OK, next((each.version for each in metadata.distributions(name="torch")), "is installed"))


def _home(config: LocalProcessBackendConfig) -> Check:
    folder = config.state_home
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Check("home", OK, str(folder))
    except OSError as error:
        return Check("home", MISSING, f"{folder} cannot be written: {error.strerror}", "set TRAINJOB_HOME or --home")


def _print(report: Report) -> None:
    rows = [(check.what, check.state, check.found, check.cost) for check in report.checks]
    print_table(("CHECK", "STATE", "FOUND", "COST"), rows)
    if report.repair:
        print("\n# Grants what is not permitted. An administrator gives it to `kubectl apply -f -`:")
    for number, each in enumerate(report.repair):
        print("---" if number else "", end="\n" if number else "")
        print_yaml(each)
