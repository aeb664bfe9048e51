"""The command `trainjob`. Names the extra to install if typer or rich is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer_core.base.text import missing_extra

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        from trainer_core.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"trainjob: {missing_extra('the command', error.name, 'cli')}", file=sys.stderr)
        return 2
    return run(arguments)
