"""`make attack`: plays every attack, and writes the table of docs/tried.md.

Arguments: a seed, minutes (default 15), and a part of the names of the attacks to play, such as ``search``; the table
is then printed only. Without a seed a random one is used; it is printed. Each attack gets an equal part of the time and
plays its rounds in eight parts, of which it begins none when its time is over. The table has the rounds that were
played.
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

from attack_scenarios import SCENARIOS, Scenario

PAGE = Path(__file__).parents[2] / "docs" / "tried.md"
MARK = "<!-- written by make attack -->\n"
#: Parts in which the rounds of an attack are played.
PARTS = 8


def main() -> int:
    """Play all attacks; return 1 if a promise did not hold."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(10**6)
    seconds = 60 * (float(sys.argv[2]) if len(sys.argv) > 2 else 15)
    part = sys.argv[3] if len(sys.argv) > 3 else ""
    chosen = [scenario for scenario in SCENARIOS if part in f"{scenario.name} {scenario.play.__name__}"]
    print(f"seed {seed}", flush=True)
    # What hangs is shown by a traceback.
    faulthandler.dump_traceback_later(seconds + 300, exit=True)
    begin = time.monotonic()
    rows, is_broken = [], False
    for scenario in chosen:
        rounds, violations = play(scenario, seed, seconds / len(chosen))
        print(f"{scenario.name}: {rounds} rounds, {len(violations)} violations", flush=True)
        for violation in violations[:20]:
            print(f"  {violation}", flush=True)
        is_broken = is_broken or bool(violations)
        rows.append(f"| {scenario.name} | {scenario.promise} | {rounds:,} | {len(violations)} |")
    if chosen == [*SCENARIOS]:
        write_table(rows, seed, time.monotonic() - begin)
    else:
        print("\n".join(rows), flush=True)
    return int(is_broken or not chosen)


def play(scenario: Scenario, seed: int, seconds: float) -> tuple[int, list[str]]:
    """Play an attack until its rounds or its time are over; return the rounds and the violations."""
    chance = random.Random(seed)  # noqa: S311 -- a seed to repeat the choices
    begin = time.monotonic()
    rounds, violations = 0, []
    while rounds < scenario.rounds and (rounds == 0 or time.monotonic() - begin < seconds):
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            part = min(-(-scenario.rounds // PARTS), scenario.rounds - rounds)
            violations += scenario.play(part, chance, Path(folder))
        rounds += part
    return rounds, violations


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
