"""TRLConfig: its checks, the request that it becomes, and what its program does before TRL is imported."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import pytest
from hypothesis import given, settings, strategies as st
from kfp.dsl.pipeline_channel import PipelineParameterChannel

from trainer_core import BuiltinTrainer, ConfigTrainer, Name, SecretRef, TRLConfig
from trainer_core.backends import backend_class
from trainer_core.definition import trl_program
from trainer_core.definition.request_builder import build_request
from trainer_core.definition.trainers import trainer_from_dict
from trainer_core.definition.trl import METHODS, _list_arguments
from trainer_core.model.request import TrainJobRequest
from trainer_core.node.load_function import load
from trainer_core.search.parameters import apply_parameters

MODEL = {"model_name_or_path": "/model", "dataset_name": "/data"}


def short(completions, **kwargs):
    return [-float(len(each)) for each in completions]


def rows():
    return [{"prompt": "a"}]


def ask(trainer, backend="local"):
    request = build_request(backend=backend_class(backend), runtime="trl-llm", trainer=trainer, options=[Name("job")])
    return TrainJobRequest.from_json(request.to_json()).work.trainer


def test_the_settings_are_the_arguments_of_a_function_that_travels():
    config = TRLConfig(
        method="dpo", learning_rate=1e-5, use_peft=True, arguments={"warmup_ratio": 0.1}, num_nodes=2, image="trl:1"
    )
    trainer = ask(ConfigTrainer(config))
    assert trainer.code.args == {
        "method": "dpo",
        "learning_rate": 1e-5,
        "use_peft": True,
        "arguments": {"warmup_ratio": 0.1},
    }
    assert (trainer.kind, trainer.code.entry, trainer.num_nodes, trainer.image) == ("custom", "train", 2, "trl:1")
    assert trainer == ask(BuiltinTrainer(config))


def test_yaml_and_objects_give_the_same_trainer():
    data = {"trl": {"method": "sft", "max_steps": 3, "env": {"HF_TOKEN": {"name": "hf", "key": "token"}}}}
    config = TRLConfig(method="sft", max_steps=3, env={"HF_TOKEN": SecretRef("hf", "token")})
    assert trainer_from_dict(data) == BuiltinTrainer(config)
    assert ask(data, "kubernetes") == ask(BuiltinTrainer(config), "kubernetes")


def test_rendered_templates_become_the_types_of_the_fields():
    config = TRLConfig(method="sft", max_steps="{{ params.steps }}", learning_rate="{{ params.rate }}")
    code = config.to_trainer({})["code"]
    code["args"].update(max_steps="30", learning_rate="1e-4")
    request = TrainJobRequest.parse({"name": "job", "trainer": {"kind": "custom", "code": code}})
    assert request.work.trainer.code.args == {"method": "sft", "max_steps": 30, "learning_rate": 1e-4}


def test_a_parameter_of_a_pipeline_is_refused_as_a_setting():
    channel = PipelineParameterChannel("rate", "Float")
    with pytest.raises(ValueError, match="TRLConfig learning_rate: a parameter of a KFP pipeline is no setting"):
        TRLConfig(method="sft", learning_rate=channel)


def test_fields_are_parameters_of_a_search():
    request = build_request(
        backend=backend_class("local"), trainer=BuiltinTrainer(TRLConfig(method="dpo")), options=[Name("job")]
    )
    changed = apply_parameters(request, {"learning_rate": 0.1, "lora_r": 8.0, "arguments.warmup_ratio": 0.2})
    assert changed.work.trainer.code.args == {
        "method": "dpo",
        "learning_rate": 0.1,
        "lora_r": 8,
        "arguments": {"warmup_ratio": 0.2},
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "stf"}, r"method 'stf' is unknown; did you mean 'sft'\?"),
        ({"method": "sft", "learning_rate": "fast"}, "TRLConfig learning_rate: 'fast' is not a float"),
        ({"method": "sft", "max_steps": 1.5}, "TRLConfig max_steps: 1.5 is not an int"),
        ({"method": "grpo", "packing": True}, "TRLConfig packing is no argument of grpo, only of sft; remove it"),
        ({"method": "sft", "reward_funcs": ["accuracy_reward"]}, "reward_funcs is no argument of sft, only of grpo"),
        ({"method": "sft", "arguments": {"max_steps": 3}}, r"max_steps is a field; give TRLConfig\(max_steps=…\)"),
        ({"method": "sft", "arguments": {"output_dir": "o"}}, "output_dir is set by the job; remove it"),
        ({"method": "sft", "arguments": {"seed2": {1}}}, "seed2.* is a set, which is not JSON"),
        ({"method": "sft", "num_nodes": 0}, "num_nodes must be a whole number of at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(values, message):
    with pytest.raises(ValueError, match=message) as refused:
        TRLConfig(**values)
    assert "\n" not in str(refused.value)


def test_an_argument_that_the_installed_trl_does_not_know_gets_the_nearest(tmp_path, monkeypatch):
    for path, fields in {
        "trl/trainer/sft_config.py": "packing: bool",
        "trl/trainer/base_config.py": "logging_steps: float",
        "trl/trainer/model_config.py": "lora_r: int",
        "trl/scripts/utils.py": "dataset_name: str",
        "trl/scripts/sft.py": "pass",
        "transformers/training_args.py": "warmup_ratio: float",
        "trl/__init__.py": "raise_if_imported: int = 1 / 0",
        "transformers/__init__.py": "raise_if_imported: int = 1 / 0",
    }.items():
        tmp_path.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(path).write_text(f"class Arguments:\n    {fields}\n")
    monkeypatch.syspath_prepend(tmp_path)
    _list_arguments.cache_clear()
    try:
        TRLConfig(method="sft", arguments={"warmup_ratio": 0.1})
        with pytest.raises(ValueError, match=r"'warmup_ration' is no argument of sft.*; did you mean 'warmup_ratio'\?"):
            TRLConfig(method="sft", arguments={"warmup_ration": 0.1})
    finally:
        _list_arguments.cache_clear()


def test_rewards_and_a_dataset_travel_as_functions(tmp_path):
    config = TRLConfig(method="grpo", reward_funcs=[short, "accuracy_reward", "rewards:exact"], dataset=rows)
    args = ask(BuiltinTrainer(config)).code.args
    assert args["reward_funcs"] == ["accuracy_reward"]
    ours, reference = args["functions"]["rewards"]
    assert reference["text"] == "rewards:exact"
    assert load(ours, tmp_path)(completions=["abc"]) == [-3.0]
    assert load(args["functions"]["dataset"], tmp_path)() == rows()
    names = trl_program._load_rewards([ours])
    assert [
        getattr(sys.modules["trainjob_rewards"], name.rpartition(".")[2])(completions=["ab"]) for name in names
    ] == [[-2.0]]


def test_without_trl_the_error_names_the_line_that_installs_it():
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trl\[peft\]'.*packages_to_install=\['trl\[peft\]'\]"):
        trl_program.train("sft", **MODEL)


WRITERS = {
    "rows.jsonl": lambda columns: json.dumps(dict.fromkeys(columns, "w")) + "\n",
    "rows.csv": lambda columns: ",".join(columns) + "\n" + ",".join("w" for _ in columns) + "\n",
}
ALL_COLUMNS = ["messages", "prompt", "completion", "chosen", "rejected", "label", "text", "other"]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    columns=st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True),
    name=st.sampled_from(sorted(WRITERS)),
)
def test_columns_are_accepted_exactly_where_the_method_has_all_it_needs(tmp_path_factory, method, columns, name):
    folder = tmp_path_factory.mktemp("data")
    (folder / name).write_text(WRITERS[name](columns))
    expected = {
        "sft": "messages" in columns or "text" in columns or {"prompt", "completion"} <= {*columns},
        "dpo": {"chosen", "rejected"} <= {*columns},
        "reward": {"chosen", "rejected"} <= {*columns},
        "kto": {"prompt", "completion", "label"} <= {*columns},
        "grpo": "prompt" in columns,
    }[method]
    refusals = (
        nullcontext() if expected else pytest.raises(ValueError, match=f"columns {', '.join(sorted(columns))} in")
    )
    with refusals:
        trl_program.check_columns(method, {"dataset_name": folder})


def test_a_folder_without_data_says_what_it_contains(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"no file of JSONL, JSON, CSV or Parquet; \S+ contains notes.txt"):
        trl_program.check_columns("sft", {"dataset_name": tmp_path})


def test_settings_become_words_of_a_command_line():
    words = trl_program.to_words({"packing": True, "beta": None, "reward_funcs": ["a", "b"], "fsdp_config": {"x": 1}})
    assert words == ["--packing", "True", "--reward_funcs", "a", "b", "--fsdp_config", '{"x": 1}']


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"),
            "per_device_train_batch_size is 8; use half",
        ),
        (ValueError("no chat_template is set"), "the tokenizer has no chat template: use a model with one"),
        (ValueError("Asking to pad, but no pad_token"), "the tokenizer has no pad token"),
    ],
)
def test_an_error_that_is_known_says_what_to_change(error, hint):
    trl_program._explain(error, {"per_device_train_batch_size": 8})
    assert hint in str(error)
