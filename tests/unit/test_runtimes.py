"""Runtime and RuntimeTrainer."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType


def trainer(**changed):
    given = {"trainer_type": TrainerType.CUSTOM_TRAINER, "framework": "torch", "image": "pytorch:1"}
    return RuntimeTrainer(**{**given, **changed})


def test_two_equal_trainers_are_equal():
    assert trainer() == trainer()
    assert trainer(command=("torchrun",)) != trainer()


def test_a_runtime_trainer_survives_a_round_trip_through_a_dict():
    original = trainer(command=("torchrun",), num_nodes=2)
    assert RuntimeTrainer(**asdict(original)) == original


def test_an_unknown_command_is_empty():
    assert trainer().command == ()


def test_a_command_can_be_set_and_survives_a_copy():
    one = trainer()
    one.set_command(("torchrun",))
    assert replace(one, num_nodes=2).command == ("torchrun",)


@pytest.mark.parametrize("command", ["torchrun", [1], [""]])
def test_an_invalid_command_is_refused(command):
    with pytest.raises(ValueError, match="command"):
        trainer().set_command(command)


def test_kinds_are_members_or_values():
    runtime = Runtime("torch", trainer(trainer_type="BuiltinTrainer"), "TrainingRuntime")
    assert runtime.kind is RuntimeKind.TRAINING_RUNTIME
    assert runtime.trainer.trainer_type is TrainerType.BUILTIN_TRAINER


def test_a_runtime_is_cluster_scoped_by_default():
    assert Runtime("torch", trainer()).kind is RuntimeKind.CLUSTER_TRAINING_RUNTIME


def test_unknown_kinds_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="kind must be one of 'ClusterTrainingRuntime', 'TrainingRuntime'; got 'Pod'"):
        Runtime("torch", trainer(), "Pod")
    with pytest.raises(ValueError, match="trainer_type must be one of 'CustomTrainer', 'BuiltinTrainer'; got 'x'"):
        trainer(trainer_type="x")
