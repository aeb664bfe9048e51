"""`make attack`: plays every attack with all its rounds, and writes the table of docs/tried.md.

Takes a seed as its only argument; without one, a random one, which is printed. Ends after at most 20 minutes: attacks
that were not played by then are not in the table.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import random
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from attack_scenarios import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "tried.md"
MARK = "<!-- written by make attack -->\n"
#: Seconds after which no further attack begins, and after which the process ends with a traceback of what hangs.
LAST_START, LIMIT = 15 * 60, 20 * 60


def main() -> int:
    """Play all attacks; return 1 if a promise did not hold."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    begin = time.monotonic()
    rows, is_broken = [], False
    for scenario in SCENARIOS:
        if time.monotonic() - begin > LAST_START:
            print(f"not played: {scenario.name}", flush=True)
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            violations = scenario.play(scenario.rounds, random.Random(seed), Path(folder))  # noqa: S311 -- a seed to repeat the choices
        seconds = time.monotonic() - started
        print(f"{scenario.name}: {scenario.rounds} rounds, {len(violations)} violations, {seconds:.0f} s", flush=True)
        for violation in violations[:20]:
            print(f"  {violation}", flush=True)
        is_broken = is_broken or bool(violations)
        rows.append(f"| {scenario.name} | {scenario.promise} | {scenario.rounds:,} | {len(violations)} |")
    write_table(rows, seed, time.monotonic() - begin)
    return int(is_broken)


def write_table(rows: list[str], seed: int, seconds: float) -> None:
    """Replace the table of the page."""
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    day = datetime.now(timezone.utc).date()
    where = f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} processors"
    lines = [
        f"Played on {day} with seed {seed} in {seconds / 60:.0f} minutes ({where}).",
        "",
        "| what was done | what must hold | rounds | violations |",
        "| --- | --- | ---: | ---: |",
        *rows,
    ]
    PAGE.write_text(before + MARK + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: threads of the cluster double that still wait must not delay the end.
    os._exit(code)
