"""The Typer app: global options, subcommands, and conversion of errors to exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module, metadata
from typing import Annotated, Any

import typer

from trainer_core.base.errors import TrainerError
from trainer_core.base.text import shorten
from trainer_core.cli import exit_codes
from trainer_core.cli.options import GlobalOptions, fill_optional_values, move_global_options
from trainer_core.model.backend_names import OWN_BACKENDS

#: Module of each subcommand, in the order of the help.
_MODULES = dict.fromkeys(("submit", "initialize", "render"), "submit")
_MODULES |= dict.fromkeys(("list", "compare", "get", "wait", "logs", "events", "retry"), "jobs")
_MODULES |= {"debug": "debug"}
_MODULES |= dict.fromkeys(("suspend", "resume", "cancel", "delete", "checkpoints", "reap"), "jobs")
_MODULES |= {"search": "search", "searches": "search", "doctor": "doctor", "lint": "lint", "migrate": "migrate"}
_MODULES |= dict.fromkeys(("runs", "promote", "models"), "tracking")
_MODULES |= {"runtimes": "create_runtime"}
#: Characters of an error. Messages about what a user gave are shorter; those of clusters may list what is missing.
_MAX_LINE = 2000
#: Base class of usage errors; in click or in typer, depending on the version of typer.
_UsageError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"trainjob {metadata.version('trainjob-workflows')}")
        raise typer.Exit


def parse_global_options(
    context: typer.Context,
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"Backend: {', '.join(OWN_BACKENDS)}, or that of an installed distribution. "
            "Default: TRAINJOB_BACKEND, or local."
        ),
    ] = None,
    home: Annotated[
        str | None, typer.Option(help="State folder of the local backend. Default: TRAINJOB_HOME, or ~/.trainjob.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace, for cluster backends.")] = None,
    kube_context: Annotated[
        str | None,
        typer.Option("--context", help="Context of the kubeconfig, for cluster backends. Default: its current one."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the global options."""
    del version
    context.obj = GlobalOptions(backend, home, namespace, kube_context)


def create_app(arguments: Collection[str] = ()) -> typer.Typer:
    """Return the command with the subcommands that the arguments name, or all: only their modules are loaded."""
    app = typer.Typer(
        help="Submit TrainJobs, follow them, and manage runtimes, on this machine or on a cluster.",
        epilog=exit_codes.HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(parse_global_options)
    named = [name for name in _MODULES if name in arguments and "--help" not in arguments]
    for name in named or _MODULES:
        module = import_module(f"trainer_core.cli.{_MODULES[name]}")
        if name == "runtimes":
            app.add_typer(module.group, name=name)
        else:
            app.command(name, epilog=exit_codes.HELP)(getattr(module, {"list": "list_jobs"}.get(name, name)))
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; print errors as one line on standard error."""
    logging.basicConfig(format="trainjob: %(message)s")
    # They name each OnBackend that is skipped.
    logging.getLogger("trainer_core.definition.options").setLevel(logging.INFO)
    # It warns of each request that is repeated; what cannot be reached in the end is an error or a warning of ours.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    _open_closed_outputs()
    try:
        given = fill_optional_values(move_global_options(sys.argv[1:] if arguments is None else arguments))
        code = create_app(given)(args=given, prog_name="trainjob", standalone_mode=False)
    except typer.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return exit_codes.INTERRUPTED
    except SystemExit as end:
        # Typer exits with 1, the code of a failed job, when the reader of our output has closed it, as `head` does.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _discard_output()
        return exit_codes.OK
    except _UsageError as error:
        # Typer lets pydantic read values, and keeps its prefix.
        return _fail(shorten(error.format_message().replace(": Value error, ", ": ")), exit_codes.BAD_INPUT)
    except (TrainerError, ValueError) as error:
        return _fail(str(error), exit_codes.get_exit_code(error))
    except OSError as error:
        # Most likely standard output is a file on a full disk.
        _discard_output()
        return _fail(str(error), exit_codes.UNAVAILABLE)
    return code if isinstance(code, int) else exit_codes.OK


def _open_closed_outputs() -> None:
    """Send outputs that the shell has closed (`>&-`) to /dev/null: `print` writes to stdout where stderr is None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _discard_output() -> None:
    """Send the remaining output to /dev/null; otherwise Python reports an error when it flushes the output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    if message:  # Without a subcommand, the help is the message.
        print(f"trainjob: {shorten(message, _MAX_LINE)}", file=sys.stderr)
    return code
