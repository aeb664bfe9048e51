"""An API server in this process, its users, and DAGs with submitted TrainJobs."""

from __future__ import annotations

import datetime
import urllib.parse

from airflow.sdk import DAG

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer, TrainJobRef
from trainer_core.node.env import RESOURCE_INTERVAL

EDITOR = {"username": "editor", "role": "USER"}
VIEWER = {"username": "viewer", "role": "VIEWER"}
#: A user without access to DAGs whose id begins with "closed".
OUTSIDER = {"username": "outsider", "role": "USER"}


class Browser:
    """Client of the API server for one user."""

    def __init__(self, client, manager, user, task=None):
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        self._client = client
        self.headers = {"Authorization": f"Bearer {manager.generate_jwt(SimpleAuthManagerUser(**user))}"}
        self.task = task

    def get(self, path, **parameters):
        return self._client.get(self._url(path, parameters), headers=self.headers, follow_redirects=False)

    def post(self, path, **headers):
        ours = {"X-TrainJobs": "1", "Sec-Fetch-Site": "same-origin", **headers}
        return self._client.post(self._url(path, {}), headers={**self.headers, **ours})

    def job(self):
        answer = self.get("api/job")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _url(self, path, parameters):
        about = dict(self.task or {})
        path = path.replace("api/", f"api/dags/{about.pop('dag_id')}/") if about else path
        return f"/trainjobs/{path}?{urllib.parse.urlencode({**about, **parameters}, doseq=True)}"


def train(gate: str, secret: str = "", password: str = "") -> dict:
    import pathlib
    import time

    from trainer_core import progress

    print(f"training begins {secret}", flush=True)
    progress(step=1, total=4, metrics={"loss": 2.0})
    progress(step=4, total=4, metrics={"loss": 0.5})
    print("<b>waiting</b>", flush=True)
    while not pathlib.Path(gate).exists():
        time.sleep(0.02)
    return {"metrics": {"accuracy": 0.97}, "artifacts": {"model": "s3://models/one"}}


def a_dag(dag_id, trainer, **arguments):
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(dag_id, schedule=None, start_date=start) as dag:
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=trainer,
            **{"wait_for_completion": False, **arguments},
        )
    return dag


def task_of(dag_run):
    return {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": "train", "map_index": -1}


def training(gate, **arguments):
    # Without reports of the use of resources, which a log that is read twice would have in between.
    return CustomTrainer(train, {"gate": str(gate), **arguments}, env={RESOURCE_INTERVAL: "0"})


def push(task, key, value):
    from airflow.models.xcom import XComModel

    XComModel.set(key, value, **task)


def ref_of(task):
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    parts = {name: task[name] for name in ("run_id",)}
    with create_session() as session:
        found = session.scalars(XComModel.get_many(key="ref", dag_ids=task["dag_id"], task_ids="train", **parts)).one()
        return TrainJobRef.from_dict(XComModel.deserialize_value(found))
