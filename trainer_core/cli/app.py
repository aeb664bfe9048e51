"""The command itself: its subcommands and how errors leave it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from trainer_core.cli import create_runtime, doctor, exits, lint, manage, migrate, runtimes, submit
from trainer_core.cli.settings import Settings
from trainer_core.errors import TrainerError

__all__ = ["app", "run"]

app = typer.Typer(
    help="Run training jobs and follow them, on this machine or on a cluster.",
    epilog=exits.HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
submit.register(app)
manage.register(app)
create_runtime.register(runtimes.group)
app.add_typer(runtimes.group, name="runtimes")
doctor.register(app)
lint.register(app)
migrate.register(app)

#: The base class of wrong usage; it lies in click or in typer, by typer's version.
_UsageError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _version(asked: bool) -> None:
    if asked:
        print(f"trainjob {metadata.version('trainjob-workflows')}")
        raise typer.Exit


@app.callback()
def settings(
    context: typer.Context,
    backend: Annotated[
        str | None, typer.Option(help="Where jobs run: local, debug, … (TRAINJOB_BACKEND; local)")
    ] = None,
    home: Annotated[
        str | None, typer.Option(help="State folder of the local backend. (TRAINJOB_HOME; ~/.trainjob)")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace, for backends on a cluster.")] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Take what holds for every subcommand."""
    del version
    context.obj = Settings(backend, home, namespace)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors are one line on standard error."""
    try:
        code = app(args=list(arguments) if arguments is not None else None, prog_name="trainjob", standalone_mode=False)
    except typer.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return exits.INTERRUPTED
    except SystemExit as end:
        # Typer's answer to a reader of our output that has gone, as `head` does; its code is that of a failed job.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _write_no_more()
        return exits.OK
    except _UsageError as error:
        return _fail(error.format_message(), exits.BAD_INPUT)
    except (TrainerError, ValueError) as error:
        return _fail(str(error), exits.code_of(error))
    except OSError as error:
        # A full disk below our output, most likely.
        _write_no_more()
        return _fail(str(error), exits.UNAVAILABLE)
    return code if isinstance(code, int) else exits.OK


def _write_no_more() -> None:
    """Let what is still to be written vanish, or Python would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"trainjob: {' '.join(message.split())}", file=sys.stderr)
    return code
