"""Restarts by the supervisor: nothing of an ended start stays alive, and a killed supervisor exceeds no budget."""

from __future__ import annotations

import json

from local_jobs import PATIENCE, counts_and_exits, kill, processes_of, supervisor_of

from trainer_core import Category, Name, RestartPolicy
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import RestartCause, Restarts
from trainer_core.model.restart_rules import RestartRules


def fails_beside_a_child(pids: str):
    """Writes the process ids of a child in a new session, and whether the one of the start before is alive."""
    import os
    import subprocess
    import sys
    from contextlib import suppress
    from pathlib import Path

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    while not Path(f"/proc/{child.pid}/environ").read_bytes():
        pass
    earlier = Path(pids).read_text().split() if Path(pids).exists() else []
    Path(pids).write_text(" ".join([*earlier, str(child.pid)]))
    for pid in earlier:
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():  # It is empty once the process is dead.
                os._exit(4)
    sys.exit(3 if len(earlier) < 2 else 0)


def exits_once(starts: str, gate: str):
    import sys
    import time
    from pathlib import Path

    if not Path(starts).exists():
        Path(starts).touch()
        sys.exit(3)
    Path(gate).touch()
    time.sleep(600)


def submit(client, func, args, **policy):
    options = [RestartPolicy(**{"exit_codes": {3: "count"}, "delay": 0, **policy}), Name("restarted")]
    return client.submit(
        client.build_request(runtime="python", trainer={"func": func, "func_args": args}, options=options)
    )


def test_nothing_of_a_start_is_alive_when_the_next_one_begins(client, tmp_path):
    ref = submit(client, fails_beside_a_child, {"pids": str(tmp_path / "pids")})
    outcome = client.wait(ref, timeout=PATIENCE, restarts=False)
    assert (outcome.diagnosis, outcome.restarts.total) == (None, 2)
    assert processes_of(ref.uid) == []


def test_a_supervisor_killed_between_two_starts_leaves_the_failure_and_its_restart(client, home, tmp_path):
    starts = tmp_path / "starts"
    ref = submit(client, counts_and_exits, {"starts": str(starts)}, delay="1h", max_restarts=1)
    with client.follow(ref) as follower:
        while not follower.next_observation(PATIENCE).queued:
            pass
    kill(supervisor_of(home, ref.name))
    outcome = client.wait(ref, timeout=PATIENCE, restarts=False)
    following = outcome.restarts.following
    assert (outcome.diagnosis.category, outcome.restarts.total) == (Category.USER_CODE, 0)
    assert (following.category, following.counted, following.delay) == ("UserCode", True, 300)
    assert starts.read_text() == "one start\n"


def test_a_supervisor_killed_in_the_last_start_of_the_budget_is_the_end(client, home, tmp_path):
    args = {"starts": str(tmp_path / "starts"), "gate": str(tmp_path / "gate")}
    ref = submit(client, exits_once, args, max_restarts=1)
    with client.follow(ref) as follower:
        while not (tmp_path / "gate").exists():
            follower.next_observation(0.1)
    kill(supervisor_of(home, ref.name))
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.job, outcome.diagnosis.category) == (ref, Category.INFRASTRUCTURE)
    assert (outcome.restarts.counted, outcome.restarts.following) == (1, None)
    assert "the budget of RestartPolicy is used up (max_restarts=1)" in outcome.diagnosis.reason


def test_a_suspended_job_keeps_its_place_between_two_starts(client, home, tmp_path):
    starts = tmp_path / "starts"
    ref = submit(client, counts_and_exits, {"starts": str(starts)}, delay="1h", max_restarts=1)
    with client.follow(ref) as follower:
        while not follower.next_observation(PATIENCE).queued:
            pass
    client.suspend(ref)
    client.wait_for_job_status(ref.name, {"Suspended"}, timeout=PATIENCE)
    record = json.loads((home / "jobs" / ref.name / "status.json").read_text())
    assert record["ended_start"]["diagnosis"]["category"] == "UserCode"
    client.resume(ref)
    with client.follow(ref) as follower:
        while follower.next_observation(PATIENCE).status != "Created":
            pass
    assert starts.read_text() == "one start\n"


def test_the_deadline_is_that_of_all_starts_together():
    earlier = Restarts(total=1, counted=1, causes=(RestartCause("NodeLost", seconds=40.0),), seconds=40.0)
    assert AttemptRestarts(RestartRules(), earlier, 60).seconds_left == 20
    assert AttemptRestarts(RestartRules(), earlier).seconds_left is None
    assert AttemptRestarts(RestartRules(), earlier, 40).seconds_left == 1
