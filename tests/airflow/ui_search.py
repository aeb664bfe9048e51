"""Answers of the API for the page of a search: 24 trials of three parameters, of which losers ended early."""

from __future__ import annotations

import json
import math
import urllib.parse

from ui_jobs import CREATED, HOSTILE

TASK = {"dag_id": "nightly_forecast", "run_id": f"manual__{CREATED}", "task_id": "tune", "map_index": -1}
SEARCH_PATH = f"search?{urllib.parse.urlencode(TASK)}"
STEPS = 9


def trial(number):
    rate = 10 ** (-4 + 3 * (number * 7 % 24) / 23)
    value = round(0.2 + (math.log10(rate) + 2.3) ** 2 / 4 + 0.01 * (number % 3), 4)
    status = "Running" if number > 21 else "Stopped early" if value > 0.45 else "Complete"
    return {
        "number": number,
        "status": status,
        "value": value,
        "parameters": {"lr": rate, "batch": [16, 32, 64][number % 3], "layers": 1 + number % 4},
        "job": f"tune-{number}-0123456789",
        "step": {"Complete": STEPS, "Running": 5}.get(status, 3),
        "seconds": None if status == "Running" else 40.0 + number,
        "reason": f"val_loss {value} at step 3 is not among the best" if status == "Stopped early" else None,
    }


TRIALS = [trial(number) for number in range(23)]
TRIALS.append({**trial(23), "status": "Failed", "value": None, "reason": f"ValueError: {HOSTILE}"})
COMPLETE = sorted((each for each in TRIALS if each["status"] == "Complete"), key=lambda each: each["value"])
BEST = COMPLETE[0]


def search(**changes):
    return {
        "task": {**TASK, "state": "deferred"},
        "label": "tune",
        "backend": "kubernetes",
        "created": CREATED,
        "status": "Running",
        "summary": "23 of 30, 1 running, 12 stopped early, "
        f"best val_loss {BEST['value']} (minimized, trial {BEST['number']})",
        "metric": "val_loss",
        "direction": "minimize",
        "algorithm": "RandomSearch",
        "stop": "Asha",
        "space": {"lr": {"log": True}, "batch": {"choices": [16, 32, 64]}, "layers": {"log": False}},
        "best": BEST["number"],
        "trials": TRIALS,
        **changes,
    }


def log(query):
    one = TRIALS[int(query["attempt"][0].split("-")[1])]
    end = one["value"] or 1
    points = [{"step": step, "metrics": {"val_loss": end + 1 / step}} for step in range(1, one["step"] + 1)]
    empty = {"lines": [], "times": [], "resources": [], "left_out": 0, "complete": True}
    return {**empty, "points": points, "cursor": json.dumps({"at": one["step"]})}


def answers(**changes):
    dag = TASK["dag_id"]
    return {f"api/dags/{dag}/search": search(**changes), f"api/dags/{dag}/log": log}
