"""Answers questions with the real mlflow client. Runs in .venv-mlflow; one JSON document a line in and out."""

import json
import sys

import mlflow
from mlflow import MlflowClient


def describe(client, run):
    names = run.data.metrics
    history = {
        name: [[p.step, p.value, p.timestamp] for p in client.get_metric_history(run.info.run_id, name)]
        for name in names
    }
    return {
        "id": run.info.run_id,
        "status": run.info.status,
        "name": run.info.run_name,
        "end": run.info.end_time,
        "params": run.data.params,
        "tags": run.data.tags,
        "metrics": run.data.metrics,
        "history": history,
    }


def answer(client, question):
    what = question["what"]
    if what == "runs":
        experiment = client.get_experiment_by_name(question["experiment"])
        runs = (
            client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]) if experiment else []
        )
        return [describe(client, run) for run in runs]
    if what == "alias":
        found = client.get_model_version_by_alias(question["model"], question["alias"])
        return {"version": found.version, "source": found.source, "tags": found.tags}
    if what == "versions":
        return [each.version for each in client.search_model_versions(f"name='{question['model']}'")]
    if what == "set_alias":
        return client.set_registered_model_alias(question["model"], question["alias"], question["version"])
    if what == "delete_alias":
        return client.delete_registered_model_alias(question["model"], question["alias"])
    if what == "terminate":
        return client.set_terminated(question["run"])
    if what == "log_metric":
        return client.log_metric(question["run"], question["name"], question["value"], step=question.get("step", 0))
    if what == "delete":
        return client.delete_run(question["run"])
    return mlflow.artifacts.download_artifacts(question["uri"], dst_path=question["folder"])


answers, sys.stdout = sys.stdout, sys.stderr  # The client prints what a person may want to see.
mlflow.set_tracking_uri(sys.argv[1])
the_client = MlflowClient(sys.argv[1])
print(json.dumps("ready"), file=answers, flush=True)
for line in sys.stdin:
    print(json.dumps(answer(the_client, json.loads(line))), file=answers, flush=True)
