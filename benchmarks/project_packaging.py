"""What packing the files of a project costs: 1,000 modules in 40 packages, with a .gitignore.

Prints seconds of processor time of the best of several rounds, which is to be at most 1 s, and the size that travels.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path

from trainer_core.base.text import format_size
from trainer_core.packaging.project import read_project

FILES = 1000
ROUNDS = int(os.environ.get("ROUNDS", "5"))
LIMIT = 1.0


def write_project(root: Path) -> None:
    """Write modules of lines that the core's own modules have."""
    lines = [
        line for file in Path(__file__).parents[1].glob("trainer_core/*.py") for line in file.open(encoding="utf-8")
    ]
    draw = random.Random(1)  # noqa: S311 -- equal files in each run
    for number in range(FILES):
        file = root / f"package{number % 40}" / f"module{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(draw.sample(lines, 25)), encoding="utf-8")
    (root / ".gitignore").write_text("__pycache__/\n*.log\n/build/\n*.egg-info\n!keep.log\n", encoding="utf-8")


def main() -> None:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder))
        for _ in range(ROUNDS):
            start = time.process_time()
            packed = read_project(folder).pack()
            seconds.append(time.process_time() - start)
    size = f"{format_size(packed['size'])}, {format_size(len(packed['archive']))} packed"
    print(f"{packed['files']} files ({size}): {min(seconds):.2f} s, limit {LIMIT} s, ratio {min(seconds) / LIMIT:.2f}")


if __name__ == "__main__":
    main()
