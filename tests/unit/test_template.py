"""TrainJobTemplate: the arguments of `train` as one object."""

from __future__ import annotations

import pytest

from trainer_core.definition.template import TrainJobTemplate
from trainer_core.definition.trainers import CustomTrainer


def test_a_template_unpacks_into_the_arguments_of_train():
    trainer = CustomTrainer("train:main")
    assert dict(**TrainJobTemplate(trainer, runtime="torch")) == {
        "trainer": trainer,
        "runtime": "torch",
        "initializer": None,
    }


def test_a_template_has_no_other_keys():
    with pytest.raises(KeyError):
        TrainJobTemplate(CustomTrainer("train:main"))["keys"]
