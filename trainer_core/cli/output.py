"""What the command prints: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Format", "Output", "print_data", "print_table", "when"]


#: Characters of a line that is read by a program or kept in a file.
_WIDE = 1000


class Format(str, Enum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table for people, json for programs.")]


def print_data(data: Any) -> None:
    """Print JSON."""
    print(json.dumps(data, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; a row is one line, and only a terminal cuts it off."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console.print(table)


def when(time: datetime | None) -> str:
    """Return a time as people here read it."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""
