"""Pipelines whose training functions travel with the files of a project."""

import random

import pytest
from kfp import dsl

from kfp_components.tasks import train_task
from kfp_components.testing import host_runner
from trainer_core import CustomTrainer


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


def test_a_project_that_kfp_cannot_pass_is_refused_when_the_pipeline_is_compiled(project):
    (project / "noise.bin").write_bytes(random.Random(3).randbytes(150_000))  # noqa: S311 -- not compressible
    with pytest.raises(ValueError, match=r"KFP can pass 120000: name what the training does not need"):

        @dsl.pipeline
        def pipeline():
            train_task(trainer=CustomTrainer("train:main", {"x": 1}, code=project), runtime="python")
