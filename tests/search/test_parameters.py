"""Parameters of a trial in its request: arguments, fields of a recipe, placeholders of an image, variables."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_core import (
    Asha,
    BuiltinTrainer,
    CustomTrainer,
    CustomTrainerContainer,
    LoraConfig,
    Name,
    TorchTuneConfig,
    TrainerArgs,
)
from trainer_core.backends import backend_class
from trainer_core.base.errors import InvalidRequestError
from trainer_core.definition.request_builder import build_request
from trainer_core.model.request import Checkpoints, MoreMemory, Owner, SearchEntry, TrainJobRequest
from trainer_core.model.restart_rules import RestartRules
from trainer_core.search import template as templates
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.parameters import apply_parameters, check_trial

DEFINITION = SearchDefinition.parse({"lr": {"uniform": [0, 1]}, "opt.decay": [0.1, 0.2]}, stop=Asha(1, 30))


def train(opt: dict[str, float], lr: float) -> None:
    pass


def train_other(x: float) -> None:
    pass


def build(trainer: Any, *options: Any) -> TrainJobRequest:
    return build_request(
        backend=backend_class("kubernetes"),
        trainer=templates.add_example(trainer, DEFINITION.space),
        options=[Name("tune"), *options],
    )


def run_trial(template: TrainJobRequest, **parameters: Any) -> TrainJobRequest:
    entry = SearchEntry(key="search/tune", entry=3, trial=2, parameters=parameters, definition=DEFINITION.to_dict())
    return templates.build_run(template, DEFINITION, Owner(key="search/tune", slug="tune"), entry)


FUNCTION = build(CustomTrainer(train, func_args={"opt": {"momentum": 1}}))
IMAGE = build(
    CustomTrainerContainer("image", env={"RATE": "${trialParameters.lr}"}), TrainerArgs(["--lr=${trialParameters.lr}"])
)


def test_a_function_gets_its_parameters_as_arguments_in_their_types() -> None:
    run = run_trial(FUNCTION, **{"lr": 1, "opt.decay": 0.2})
    assert run.work.trainer is not None
    assert run.work.trainer.code is not None
    assert run.work.trainer.code.args == {"opt": {"momentum": 1, "decay": 0.2}, "lr": 1.0}


def test_every_trainer_gets_the_parameters_as_variables() -> None:
    run = run_trial(IMAGE, **{"lr": 1e-5, "opt.decay": 0.1})
    assert run.work.trainer is not None
    assert run.work.trainer.env["KUBEFLOW_TRAINER_OPT_LR"] == "1e-05"
    assert run.work.trainer.env["KUBEFLOW_TRAINER_OPT_OPT__DECAY"] == "0.1"
    assert run.work.trainer.env["TRAINJOB_HYPERPARAMETERS"] == '{"lr": 1e-05, "opt.decay": 0.1}'


def test_placeholders_of_an_image_are_replaced() -> None:
    run = run_trial(IMAGE, **{"lr": 0.25, "opt.decay": 0.1})
    assert run.work.trainer is not None
    assert run.work.trainer.args == ("--lr=0.25",)
    assert run.work.trainer.env["RATE"] == "0.25"


def test_a_recipe_gets_its_parameters_as_fields() -> None:
    request = build(BuiltinTrainer(TorchTuneConfig(epochs=1, peft_config=LoraConfig(lora_rank=8))))
    changed = apply_parameters(request, {"batch_size": 2, "peft_config.lora_rank": 16})
    assert changed.work.trainer is not None
    assert changed.work.trainer.config is not None
    assert changed.work.trainer.config["batch_size"] == 2
    assert changed.work.trainer.config["peft_config"]["lora_rank"] == 16
    with pytest.raises(InvalidRequestError, match="unknown field rank"):
        apply_parameters(request, {"rank": 1})


def test_a_parameter_that_the_trainer_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="has no parameter lr"):
        build(CustomTrainer(train_other, func_args={"x": 1}))
    unknown = build(CustomTrainerContainer("image"), TrainerArgs(["${trialParameters.rate}"]))
    with pytest.raises(InvalidRequestError, match=r"trialParameters\.rate} is no parameter of the search"):
        check_trial(unknown, DEFINITION)


def test_more_memory_for_the_retries_of_a_trial_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^MoreMemory: a retry of a trial asks for the memory of the"):
        check_trial(FUNCTION.with_fields(more_memory=MoreMemory(limit="32Gi")), DEFINITION)


@pytest.mark.parametrize("template", [FUNCTION, IMAGE], ids=["function", "image"])
def test_the_template_of_a_search_is_found_again_in_each_of_its_runs(template: TrainJobRequest) -> None:
    run = run_trial(template, **{"lr": 0.25, "opt.decay": 0.2})
    restored = templates.restore_template(TrainJobRequest.from_json(run.to_json()))
    digest = templates.compute_digest(templates.strip_template(template), DEFINITION)
    assert templates.compute_digest(restored, DEFINITION) == digest
    again = run_trial(restored, **{"lr": 0.75, "opt.decay": 0.1})
    assert again.work.trainer == run_trial(template, **{"lr": 0.75, "opt.decay": 0.1}).work.trainer


def train_batch(batch: int, rate: float = 0.1) -> None:
    pass


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"batch": {"loguniform": [16, 256]}}, r"^search_space\.batch: 88\.7\d+ is not an int \(train_batch"),
        ({"batch": [1, 2, "three", 4]}, r"^search_space\.batch: 'three' is not an int \(train_batch"),
        ({"batch": [1], "rate": ["1e-3", True]}, r"^search_space\.rate: True is not a float"),
    ],
)
def test_every_value_of_a_space_is_checked_against_the_types_of_the_function(space: Any, message: str) -> None:
    definition = SearchDefinition.parse(space)
    template = build_request(
        backend=backend_class("kubernetes"),
        trainer=templates.add_example(CustomTrainer(train_batch), definition.space),
        options=[Name("tune")],
    )
    with pytest.raises(InvalidRequestError, match=message) as refused:
        check_trial(template, definition)
    assert "\n" not in str(refused.value)


NEVER = FUNCTION.with_fields(checkpoints=Checkpoints(load="never"))


@pytest.mark.parametrize(
    ("template", "message"),
    [(FUNCTION, r"Checkpoints\(\)"), (IMAGE, "use CustomTrainer"), (NEVER, "remove load='never' from Checkpoints")],
)
def test_a_trial_that_cannot_pause_at_a_rung_is_refused(template: TrainJobRequest, message: str) -> None:
    definition = SearchDefinition.parse({"lr": [1]}, stop=Asha(1, 9, promote=True))
    with pytest.raises(InvalidRequestError, match=message):
        check_trial(template, definition)


def test_a_restart_policy_for_a_trial_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^RestartPolicy: a search decides which trials are tried again"):
        check_trial(FUNCTION.with_fields(restart_policy=RestartRules()), DEFINITION)
