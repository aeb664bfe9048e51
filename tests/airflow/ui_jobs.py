"""Answers of the API of the TrainJobs pages: two jobs with parameters, metrics, curves and logs."""

from __future__ import annotations

import json
import urllib.parse

HOSTILE = "<img src=x onerror=alert(1)>"
CREATED = "2026-11-22T20:15:00+00:00"
DAG = "nightly_forecast"
NAMES = ["forecast-train-0123456789-1", "forecast-train-0123456789-2"]
LABELS = ["train lr=0.1", "train lr=0.01"]


SHOWN = [{"name": name, "label": label} for name, label in zip(NAMES, LABELS, strict=True)]


def key(number):
    return {"dag_id": DAG, "run_id": f"run_{number}", "task_id": "train", "map_index": -1}


def query(number):
    return urllib.parse.urlencode(key(number))


JOB_PATH = f"job?{query(0)}"
COMPARE_PATH = f"compare?{urllib.parse.urlencode({'job': [query(0), query(1)]}, doseq=True)}"

ROWS = [
    {"column": "status", "values": ["Complete", "Complete"], "differs": False},
    {"column": "duration", "values": [90.0, 7200.0], "differs": True},
    {"column": "param.lr", "values": ["0.1", "0.01"], "differs": True},
    {"column": "param.note", "values": [HOSTILE, None], "differs": True},
    {"column": "param.epochs", "values": ["3", "3"], "differs": False},
    {"column": "metric.accuracy", "values": [0.5, 0.5], "differs": False},
    {"column": "metric.loss", "values": [0.25, 0.125], "differs": True},
]


RESOURCES = [
    {
        "t": 1_795_378_500_000 + 10_000 * number,
        "cpu": 50.0 + number,
        "memory": 2**30 + number,
        "memory_limit": 2**31,
        "gpus": [{"number": 0, "utilization": 90 - number, "memory": 2**33, "memory_limit": 2**34}],
    }
    for number in range(20)
]


class Api:
    """Answers of two jobs. The second has half the loss of the first; its log has one more part."""

    def __init__(self):
        self.logs = []
        #: Lines of the log of the first node.
        self.lines = [f"line {number} {HOSTILE if number == 5 else ''}" for number in range(20)]
        #: When they were written, in milliseconds since 1970; the lines after these have no time.
        self.times = [1_795_378_500_000 + 1000 * number for number in range(19)]
        self.status = "Complete"
        self.models = ["s3://models/1", "s3://models/2"]

    @property
    def answers(self):
        return {
            "api/jobs": {"dags": [DAG], "jobs": self.list(), "columns": ["duration", "param.lr"], "total": 2},
            "api/compare": self.compare,
            f"api/dags/{DAG}/job": self.job,
            f"api/dags/{DAG}/log": self.log,
            f"api/dags/{DAG}/manifest": {"yaml": "kind: TrainJob"},
        }

    def list(self):
        values = {"duration": 90.0, "param.lr": "0.1"}
        return [
            {**key(at), **names, "backend": "local", "status": self.status, "created": CREATED, "columns": values}
            for at, names in enumerate(SHOWN)
        ]

    def compare(self, query):
        numbers = [int(each.partition("run_id=run_")[2][0]) for each in query["job"]]
        jobs = [{**key(number), **SHOWN[number], "status": self.status} for number in numbers]
        models = {"column": "artifact.model", "values": self.models, "differs": True}
        rows = [{**row, "values": [row["values"][number] for number in numbers]} for row in [*ROWS, models]]
        return {"jobs": jobs, "rows": rows}

    def job(self, query):
        return {
            "task": {**key(0), "state": "success"},
            "name": NAMES[0],
            "label": "train",
            "parameters": {"lr": "0.1", "note": HOSTILE},
            "backend": "local",
            "namespace": "/state",
            "status": self.status,
            "created": CREATED,
            "started": CREATED,
            "finished": "2026-11-22T20:16:30+00:00",
            "runtime": "python",
            "num_nodes": 2,
            "steps": [
                {
                    "name": f"node-{number}",
                    "status": "Succeeded",
                    "started": CREATED,
                    "finished": CREATED,
                    "exit_code": 0,
                }
                for number in range(2)
            ],
            "events": [
                {"time": CREATED, "type": "Warning", "reason": "Slow", "about": "node-0", "message": "it is slow"}
            ],
            "metrics": {"accuracy": 0.5, "loss": 0.25},
            "artifacts": {"model": "s3://models/1"},
            "mlflow_run": "https://mlflow.example/#/experiments/1/runs/2",
            "assets": [{"id": 7, "name": "forecast"}],
            "actions": ["delete"],
        }

    def log(self, query):
        self.logs.append(query)
        number = int(query["run_id"][0].removeprefix("run_"))
        first = json.loads(query["cursor"][0]).get("node-0", 0)
        text = query.get("text", [""])[0].lower()
        wanted = [at for at, line in enumerate(self.lines) if first <= at < first + 15 and text in line.lower()]
        wanted = wanted if query.get("lines") != ["0"] else []
        scale = 1 / (number + 1)
        points = [
            {"step": step, "metrics": {"loss": scale * 10.0 ** -(step // 5), "accuracy": step / 20}}
            for step in range(first + 1, min(first + 15, len(self.lines)) + 1)
        ]
        last = min(first + 15, len(self.lines))
        part = {"cursor": json.dumps({"node-0": last}), "complete": last == len(self.lines), "left_out": 0}
        return {
            **part,
            "lines": [self.lines[at] for at in wanted],
            "times": [self.times[at] if at < len(self.times) else None for at in wanted],
            "points": points,
            "resources": RESOURCES[first : first + 15],
        }
