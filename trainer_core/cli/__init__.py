"""The command `trainjob`; loads typer and rich, and says what to install where they are missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: Without the program's name; None for those of the process.
    """
    try:
        from trainer_core.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"trainjob: {error.name} is not installed; pip install 'trainjob-workflows[cli]'", file=sys.stderr)
        return 2
    return run(arguments)
