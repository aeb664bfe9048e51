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
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Between two columns, and the least width to which the last one is folded.
_GAP = "  "
_MIN_FOLDED = 20


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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], folded: int = 1, width: int | None = None
) -> None:
    """Print a table. On a terminal that is too narrow for it the last columns are folded, and no other.

    With a width, they are also folded where it is not printed on a terminal.
    """
    cells = [[Text("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = []
    for number, name in enumerate(columns):
        texts = [name, *(row[number].plain for row in cells)]
        widths.append(max(map(cell_len, texts)))
    whole = sum(widths) + len(_GAP) * (len(widths) - 1)
    limit = Console().width if sys.stdout.isatty() else width or whole
    least = whole - sum(widths[-folded:]) + folded * (_MIN_FOLDED if width is None else _MIN_FOLDED // 2)
    console = Console(width=min(whole, max(limit, least)), color_system=None, legacy_windows=False)
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), collapse_padding=True)
    for name in columns[:-folded]:
        table.add_column(name, no_wrap=True)
    for name in columns[-folded:]:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    # Without the padding of the last column.
    print("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), end="")


def format_time(time: datetime | None) -> str:
    """Return a time in the local time zone; empty for None."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""
