#!/usr/bin/env python
"""Build the sdist and the wheel, and check each extra alone in a separate environment, with uv: ``make extras``.

tools/use_extras.py runs in each environment, and a part of the tests in the unpacked sdist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What is installed in each, one set after the other, and checked each time. Those that take longest are first.
ENVIRONMENTS = (
    *(("airflow", "airflow,cli"), ("docs",), ("kfp",), ("cli,kubernetes",)),
    *(("cli,s3",), ("cli,huggingface",), ("cli,containers",), ("cli,search",), ("", "cli")),
)
#: What is run in the unpacked sdist, by the Python of this process, which has the extra `dev`.
TESTS = ("tests/unit/test_packaging.py", "tests/docs/test_docs.py::test_every_link_of_the_page_leads_somewhere")


def main() -> int:
    """Check everything; return 1 if something failed."""
    with tempfile.TemporaryDirectory(prefix="trainjob-extras-") as name:
        folder = Path(name)
        uv = _find_uv(folder)
        _run(ROOT, uv, "build", "--quiet", "--out-dir", folder / "dist", ROOT)
        checks = [partial(_check_environment, uv, folder, sets) for sets in ENVIRONMENTS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(_report, (partial(_check_sdist, folder), *checks)))
    return int(not all(results))


def _find_uv(folder: Path) -> Path:
    uv = shutil.which(os.environ.get("UV", "uv"))
    if uv is None:
        venv.create(folder / "uv", with_pip=True)
        _run(folder, folder / "uv/bin/pip", "install", "--quiet", "uv")
    return Path(uv or folder / "uv/bin/uv")


def _check_environment(uv: Path, folder: Path, sets: Sequence[str]) -> str:
    environment = folder / (sets[0] or "none")
    (wheel,) = (folder / "dist").glob("*.whl")
    _run(folder, uv, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin/python"
    home = environment / "home"
    home.mkdir()
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "TRAINJOB_HOME": str(home / "trainjob")}
    targets = {extras: f"{wheel}[{extras}]" if extras else str(wheel) for extras in sets}
    pip = (uv, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "constraints.txt")
    for extras, target in targets.items():
        _run(folder, *pip, target)
        _run(home, python, "-W", "ignore", ROOT / "tools/use_extras.py", extras, variables=variables)
    return ", ".join(f".[{extras}]" if extras else "." for extras in sets)


def _check_sdist(folder: Path) -> str:
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (folder / "sdist").mkdir()
    _run(folder / "sdist", "tar", "-xf", sdist)  # The filters of tarfile came with Python 3.11.4.
    (unpacked,) = (folder / "sdist").iterdir()
    variables = {**os.environ, "PYTHONPATH": str(unpacked)}
    # CI runs them with less priority than all other tests, and a test then takes up to eight times as long.
    command = (sys.executable, "-m", "pytest", "-q", "--timeout=900", *TESTS)
    return "the sdist's tests: " + _run(unpacked, *command, variables=variables)


def _run(folder: Path, *command: str | Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a command in a folder and return the last line it prints; raise CalledProcessError if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=variables,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.strip().rpartition("\n")[2]


def _report(check: partial[str]) -> bool:
    began = time.monotonic()
    try:
        print(f"extras: {check():16} {time.monotonic() - began:5.1f} s", flush=True)
    except subprocess.CalledProcessError as error:
        print(f"extras: failed: {' '.join(error.cmd)}\n{error.stdout[-8000:]}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
