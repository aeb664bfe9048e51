"""The exact TrainJob of a request: golden files, and what the CRDs and the Trainer's own models say of them.

After a change that is meant, write the golden files anew and review them like code::

    TRAINJOB_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/kubernetes/test_k8s_manifest.py -q
"""

from __future__ import annotations

import pytest
from k8s_crds import needs_crds, problems
from k8s_examples import EXAMPLES, GOLDEN, golden, readable
from kubeflow_trainer_api import models

pytestmark = needs_crds
TRAINJOBS = [name for name, example in EXAMPLES.items() if example.runtime]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_as_it_was_reviewed(name):
    objects = EXAMPLES[name].objects()
    assert golden(name, objects) == readable(objects)


def test_every_golden_file_is_of_an_example():
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", TRAINJOBS)
def test_an_api_server_takes_an_example(name):
    train_job, *_ = EXAMPLES[name].objects()
    assert problems(train_job, EXAMPLES[name].version) == []


@pytest.mark.parametrize("name", [name for name in TRAINJOBS if EXAMPLES[name].version == "2.3"])
def test_the_models_of_the_trainer_hold_all_of_an_example(name):
    train_job, *_ = EXAMPLES[name].objects()
    assert models.TrainerV1alpha1TrainJob.from_dict(train_job).to_dict() == train_job
