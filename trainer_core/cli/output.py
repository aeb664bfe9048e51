"""Printing: tables, JSON and YAML."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["OutputFormat", "OutputOption", "format_time", "print_json", "print_table", "print_yaml"]


#: Width of lines that do not go to a terminal, in characters.
_MAX_WIDTH = 1000


class OutputFormat(str, Enum):
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format: table or json.")]


def print_json(data: Any) -> None:
    """Print JSON."""
    print(json.dumps(data, ensure_ascii=False, indent=2))


def print_yaml(data: Mapping[str, Any]) -> None:
    """Print one YAML document."""
    print(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True), end="")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with one line for each row; lines are cut off only on a terminal."""
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else _MAX_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    if is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    # Without the padding of the last column, whose longest text sets the width of all lines.
    print("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), end="")


def format_time(time: datetime | None) -> str:
    """Return a time in the local time zone; empty for None."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""
