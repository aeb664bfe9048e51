"""Pipelines whose training functions travel with the files of a project."""

import random

import pytest
from kfp import dsl
from package_index import serve_index
from s3_storage import serving
from s3_storage.memory import MemoryStorage

from kfp_components.tasks import train_task
from kfp_components.testing import host_runner
from trainer_core import CustomTrainer
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.node import s3_client


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("from helpers import double\n\ndef main(x: int):\n    return {'y': double(x)}\n")
    (folder / "helpers.py").write_text("def double(x):\n    return 2 * x\n")
    return folder


def test_a_task_trains_with_the_files_that_were_packed_when_the_pipeline_was_compiled(tmp_path, project):
    @dsl.pipeline
    def pipeline(args: dict) -> dict:
        trainer = CustomTrainer("train:main", code=project)
        trained = train_task(trainer=trainer, runtime="python", wait=True, func_args=args)
        return trained.outputs["result"]

    with host_runner(tmp_path / "runs"):
        assert pipeline(args={"x": 21}).output == {"y": 42}


def test_a_task_trains_with_the_package_of_the_index_that_its_file_names(tmp_path, project, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with serve_index(tmp_path / "default") as default, serve_index(tmp_path / "team") as team:
        default.add("tools", "1.0", "namesake")
        digest = team.add("tools", "1.0", "team")
        monkeypatch.setenv("PIP_INDEX_URL", default.url)
        monkeypatch.setenv("UV_DEFAULT_INDEX", default.url)
        (project / "train.py").write_text("import tools\n\ndef main(x: int):\n    return {'y': tools.VALUE}\n")
        (project / "requirements.txt").write_text(f"-i {team.url}\ntools==1.0 --hash={digest}\n")

        @dsl.pipeline
        def pipeline(args: dict) -> dict:
            trainer = CustomTrainer("train:main", code=project, packages_to_install="requirements.txt")
            trained = train_task(trainer=trainer, runtime="python", wait=True, func_args=args)
            return trained.outputs["result"]

        with host_runner(tmp_path / "runs"):
            assert pipeline(args={"x": 21}).output == {"y": "team"}


@pytest.fixture
def large(project):
    (project / "noise.bin").write_bytes(random.Random(3).randbytes(150_000))  # noqa: S311 -- not compressible
    return project


@pytest.mark.parametrize("code_uri", [None, "file:///srv/code"])
def test_a_project_that_kfp_cannot_pass_is_refused_when_the_pipeline_is_compiled(large, code_uri):
    with pytest.raises(ValueError, match=r"KFP can pass 120000: give code_uri='s3://"):

        @dsl.pipeline
        def pipeline():
            trainer = CustomTrainer("train:main", {"x": 1}, code=large, code_uri=code_uri)
            train_task(trainer=trainer, runtime="python")


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_a_project_that_kfp_cannot_pass_travels_through_a_bucket(tmp_path, large, monkeypatch, backend):
    storage = MemoryStorage()
    keys = {"AWS_ACCESS_KEY_ID": "made-up", "AWS_SECRET_ACCESS_KEY": "a-secret"}
    with serving.served(storage.app()) as url:
        for name, value in {**keys, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)

        @dsl.pipeline
        def pipeline(args: dict) -> dict:
            trainer = CustomTrainer("train:main", code=large, code_uri="s3://bucket/team/code")
            trained = train_task(trainer=trainer, runtime="python", wait=True, func_args=args, backend=backend)
            return trained.outputs["result"]

        (large / "helpers.py").unlink()  # The run trains with what was stored.
        with host_runner(tmp_path / "runs"):
            assert pipeline(args={"x": 21}).output == {"y": 42}
    monkeypatch.setattr(s3_client, "_FIRST_DELAY", 0.001)
    with pytest.raises(BackendUnavailableError, match="code: the files cannot be written to s3://bucket/team/code/"):

        @dsl.pipeline
        def unreachable():
            trainer = CustomTrainer("train:main", {"x": 1}, code=large, code_uri="s3://bucket/team/code")
            train_task(trainer=trainer, runtime="python")
