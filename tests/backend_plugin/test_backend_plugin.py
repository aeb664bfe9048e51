"""A backend that another distribution adds: installed by pip, tested by the contract suite, named by each front end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from airflow_provider import get_provider_info
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.operators.trainjob import TrainJobOperator
from kfp_components.step import entrypoint
from trainer_core import (
    CustomTrainer,
    InvalidRequestError,
    Name,
    OnBackend,
    Suspend,
    TrainerClient,
    TrainJobRequest,
    UnsupportedError,
)
from trainer_core.cli import main
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.model.backend_names import find_plugins
from trainer_core.model.config import config_from_dict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the distribution; it lies beside what is installed here."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(HERE / "distribution", folder / "source")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    install += ["--disable-pip-version-check", "--no-compile", "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(install, check=True, timeout=300)
    return folder / "site"


@pytest.fixture(autouse=True)
def _installed(site, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    find_plugins.cache_clear()
    yield
    find_plugins.cache_clear()


def double(number: int) -> dict:
    return {"doubled": 2 * number}


@pytest.mark.deep
def test_it_passes_the_contract_suite(site, tmp_path):
    tests = shutil.copytree(HERE / "distribution" / "tests", tmp_path / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tests), str(tests)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_client_of_it_is_made_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRAINJOB_BACKEND", "folder")
    options = [OnBackend("folder", Name("here")), OnBackend("kubernetes", Name("there"))]
    client = TrainerClient()
    assert client.train(trainer=CustomTrainer(func=double, func_args={"number": 2}), options=options) == "here"
    assert client.wait("here").result == {"doubled": 4}
    assert (tmp_path / "trainjob-folder" / "here").is_dir()


def test_an_option_that_it_does_not_accept_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRAINJOB_BACKEND", "folder")
    trainer = CustomTrainer(func=double, func_args={"number": 2})
    with pytest.raises(ValueError, match=r"^Suspend option is not compatible with FolderBackend"):
        TrainerClient().train(trainer=trainer, options=[Suspend()])
    request = TrainJobRequest.parse(
        {**request_builder.build_request_data(backend=None, trainer=trainer), "suspend": True}
    )
    with pytest.raises(UnsupportedError, match=r"^suspend: the folder backend has no Suspend; remove it"):
        TrainerClient().submit(request.with_name("job"))


def read_priority() -> int:
    import os

    return os.nice(0)


def test_an_option_of_its_own_is_checked_by_its_model_and_refused_elsewhere(tmp_path, monkeypatch):
    from trainjob_folder.options import FolderSpec

    monkeypatch.setenv("HOME", str(tmp_path))
    client = TrainerClient(config_from_dict("folder", {}))
    trainer, here = CustomTrainer(func=read_priority), os.nice(0)
    portable = {"trainer": trainer, "options": [OnBackend("folder", FolderSpec(nice=2))]}
    data = request_builder.build_request_data(backend=None, **portable)
    request = TrainJobRequest.parse(request_builder.select_backend(data, client.backend)).with_name("job")
    assert TrainJobRequest.from_json(request.to_json()) == request
    assert client.wait(client.submit(request)).result == min(here + 2, 19)
    with pytest.raises(InvalidRequestError, match=r"^folder\.nice: Input should be less than or equal to 19, got 20$"):
        client.build_request(trainer=trainer, options=[FolderSpec(nice=20)])
    with pytest.raises(
        UnsupportedError, match=r"^folder: the debug backend has no FolderSpec; remove it, or use one of"
    ):
        backend_for("debug")().render(request)
    with pytest.raises(ValueError, match="FolderSpec option is not compatible with DebugBackend"):
        request_builder.build_request_data(backend=backend_for("debug"), trainer=trainer, options=[FolderSpec(nice=2)])


def test_the_command_submits_to_it_and_doctor_lists_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "plugged_in.py").write_text("def double(number: int):\n    return {'doubled': 2 * number}\n")
    monkeypatch.syspath_prepend(tmp_path)
    submit = ["submit", "plugged_in:double", "--arg", "number=4", "--name", "by-command", "--wait"]
    assert main(["--backend", "folder", *submit]) == 0
    assert "by-command Complete {'doubled': 8}" in capsys.readouterr().out
    assert main(["doctor", "--output", "json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {"what": "backend folder", "state": "ok", "found": "trainjob-folder 1.0", "cost": ""} in checks


def test_a_connection_of_airflow_names_it_with_its_settings_and_a_task_trains_on_it(tmp_path, monkeypatch):
    field = get_provider_info()["connection-types"][0]["conn-fields"]["backend"]
    assert field["description"].endswith("The settings of folder are extra fields in JSON.")
    assert "folder" in field["schema"]["enum"]

    def connect(**extra):
        connection = {"conn_type": "trainjob", "extra": {"backend": "folder", **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", json.dumps(connection))

    connect(folder=str(tmp_path / "jobs"))
    task = TrainJobOperator(task_id="train", trainer=CustomTrainer(func=double, func_args={"number": 6}))
    pushed = {}
    ti = SimpleNamespace(
        dag_id="nightly",
        run_id="run",
        task_id="train",
        map_index=-1,
        try_number=1,
        max_tries=0,
        xcom_push=lambda key, value: pushed.update({key: value}),
        xcom_pull=lambda **_: None,
    )
    assert task.execute({"ti": ti}) == {"doubled": 12}
    assert (tmp_path / "jobs" / pushed["ref"]["name"]).is_dir()
    assert TrainJobHook().test_connection() == (True, "The folder backend is available. Runtimes: python")
    connect(folder=str(tmp_path / "jobs"), colour="red")
    with pytest.raises(ValueError, match=r"connection 'trainjob_default': unknown field colour; .*, folder$"):
        TrainJobHook().config  # noqa: B018 -- it is read


def test_a_step_of_a_pipeline_trains_on_it(tmp_path):
    trainer = CustomTrainer(func=double, func_args={"number": 5})
    request = request_builder.build_request_data(backend=backend_for("folder"), trainer=trainer)
    parameters = {"request": request, "backend": "folder", "backend_config": {"folder": str(tmp_path / "jobs")}}
    document = yaml.safe_load((ROOT / "kfp_components" / "components" / "train.yaml").read_text(encoding="utf-8"))
    (component,) = document["components"].values()
    outputs = component["outputDefinitions"]
    artifact = {"name": "", "type": {"schemaTitle": "system.Artifact"}, "metadata": {}}
    executor_input = {
        "inputs": {"parameterValues": {**parameters, "run_id": "run", "task_name": "train"}},
        "outputs": {
            "parameters": {name: {"outputFile": str(tmp_path / name)} for name in outputs["parameters"]},
            "artifacts": {
                name: {"artifacts": [{**artifact, "uri": str(tmp_path / "artifacts" / name)}]}
                for name in outputs["artifacts"]
            },
            "outputFile": str(tmp_path / "output.json"),
        },
    }
    assert entrypoint.main(["train", json.dumps(executor_input)]) == 0
    job = json.loads((tmp_path / "job").read_text(encoding="utf-8"))
    assert ((tmp_path / "status").read_text(encoding="utf-8"), job["backend"]) == ("Complete", "folder")
    # A later step, which is given the ref alone.
    delete = {
        "inputs": {"parameterValues": {"job": job, "run_id": "run", "task_name": "end"}},
        "outputs": {"parameters": {"deleted": {"outputFile": str(tmp_path / "deleted")}}},
    }
    assert entrypoint.main(["delete", json.dumps(delete)]) == 0
    assert [*(tmp_path / "jobs").glob("[!.]*")] == []


def test_the_guide_has_the_text_of_its_files():
    sources = [path.read_text(encoding="utf-8") for path in (HERE / "distribution").rglob("*.*") if path.is_file()]
    page = (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    marked = r"^<!-- [^>]*tests/backend_plugin/distribution -->\n```\w+\n(.*?)^```$"
    blocks = re.findall(marked, page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    assert [block for block in blocks if not any(block in source for source in sources)] == []
