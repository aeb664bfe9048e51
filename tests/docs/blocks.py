"""The code blocks of a Markdown page.

A block whose first line is a comment with a file's name is written to that file. Python files are then run, and lines
of `console` blocks that start with `$`. A block after a line ``<!-- not run: reason -->`` is only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"(?P<excuse><!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
_FILE = re.compile(r"# (?P<name>[\w./-]*\.(py|yaml|csv|gitignore))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    reason: str | None

    @property
    def file(self) -> str | None:
        match = _FILE.match(self.text)
        return match["name"] if match else None

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.text.replace("\\\n", "").splitlines() if line.startswith("$ ")]

    @property
    def is_dag(self) -> bool:
        """Whether it is a DAG file: Airflow runs those."""
        return "from airflow.sdk" in self.text


def blocks(page: Path) -> list[Block]:
    return [Block(m["language"], m["text"], m["reason"]) for m in _BLOCK.finditer(page.read_text(encoding="utf-8"))]
