"""The packaged torchtune recipe: its settings, and the arguments they become."""

from __future__ import annotations

import pytest

from trainer_core.model import torchtune
from trainer_core.model.torchtune import (
    DataFormat,
    DataType,
    LoraConfig,
    Loss,
    TorchTuneConfig,
    TorchTuneInstructDataset,
)

LOSS = "torchtune.modules.loss.CEWithChunkedOutputLoss"


def test_an_empty_config_adds_no_arguments():
    assert torchtune.TorchTuneConfig.to_args({}) == []


def test_settings_become_arguments_in_a_fixed_order():
    config = {"loss": LOSS, "epochs": 3, "batch_size": 2, "dtype": "bf16"}
    assert torchtune.TorchTuneConfig.to_args(config) == ["dtype=bf16", "batch_size=2", "epochs=3", f"loss={LOSS}"]


@pytest.mark.parametrize(
    ("uri", "argument"),
    [
        ("hf://tatsu-lab/alpaca", "dataset.data_dir=/workspace/dataset"),
        ("pvc://claim/alpaca/data", "dataset.data_dir=/workspace/dataset"),
        ("hf://tatsu-lab/alpaca/data", "dataset.data_dir=/workspace/dataset/data"),
        ("hf://tatsu-lab/alpaca/data/train.json", "dataset.data_files=/workspace/dataset/data/train.json"),
    ],
)
def test_a_path_in_a_dataset_is_passed_to_the_recipe(uri, argument):
    assert torchtune.TorchTuneConfig.to_args({}, uri) == [argument]


@pytest.mark.parametrize("uri", ["s3://bucket/data", None])
def test_other_dataset_uris_add_no_arguments(uri):
    assert torchtune.TorchTuneConfig.to_args({}, uri) == []


def test_lora_settings_become_arguments_of_the_model():
    config = {"lora_attn_modules": ["q_proj", "v_proj"], "lora_rank": 8, "quantize_base": True, "use_dora": False}
    assert torchtune.TorchTuneConfig.to_args({"peft_config": config}) == [
        "model.lora_rank=8",
        "model.quantize_base=True",
        "model.use_dora=False",
        "model.lora_attn_modules=[q_proj,v_proj]",
    ]


def test_dataset_settings_become_arguments_of_the_dataset():
    config = {"source": "json", "split": "train[:90%]", "train_on_input": False, "column_map": {"input": "it's"}}
    assert torchtune.TorchTuneConfig.to_args({"dataset_preprocess_config": config}) == [
        "dataset=torchtune.datasets.instruct_dataset",
        "dataset.source=json",
        "dataset.split=train[:90%]",
        "dataset.train_on_input=False",
        'dataset.column_map={"input": "it\'s"}',
    ]


@pytest.mark.parametrize("loss", [Loss.CEWithChunkedOutputLoss, LOSS, "CEWithChunkedOutputLoss"])
def test_an_enum_is_given_as_member_value_or_name(loss):
    assert TorchTuneConfig(loss=loss).loss is Loss.CEWithChunkedOutputLoss


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchTuneConfig(dtype="fp16"), "dtype must be one of 'bf16', 'fp32'; got 'fp16'"),
        (lambda: TorchTuneConfig(loss="x"), "loss must be one of"),
        (lambda: TorchTuneConfig(epochs=0), "epochs must be a whole number of at least 1, got 0"),
        (lambda: TorchTuneConfig(batch_size=True), "batch_size must be a whole number"),
        (lambda: TorchTuneConfig(num_nodes=-1), "num_nodes must be a whole number"),
        (lambda: TorchTuneConfig(peft_config={"lora_rank": 1}), "peft_config must be a LoraConfig, got dict"),
        (lambda: TorchTuneConfig(dataset_preprocess_config=3), "dataset_preprocess_config must be a TorchTuneInstruct"),
        (lambda: TorchTuneConfig(resources_per_node={"gpu": -1}), "resource 'gpu'"),
        (lambda: LoraConfig(lora_rank=0), "lora_rank must be"),
        (lambda: LoraConfig(lora_dropout=1.5), "lora_dropout must be a number from 0 to 1, got 1.5"),
        (lambda: LoraConfig(use_dora=1), "use_dora must be True or False, got 1"),
        (lambda: LoraConfig(lora_attn_modules="q_proj"), "lora_attn_modules must be a list"),
        (lambda: TorchTuneInstructDataset(source="yaml"), "source must be one of 'json'"),
        (lambda: TorchTuneInstructDataset(column_map=["a"]), "column_map must be a dict"),
    ],
)
def test_an_invalid_setting_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_default_lists_are_not_shared():
    LoraConfig().lora_attn_modules.append("k_proj")
    assert LoraConfig().lora_attn_modules == ["q_proj", "v_proj", "output_proj"]


def test_settings_are_built_from_plain_data():
    data = {"dtype": "fp32", "peft_config": {"lora_rank": 8}, "dataset_preprocess_config": {"source": "csv"}}
    config = TorchTuneConfig.from_dict(data)
    assert config.dtype is DataType.FP32
    assert config.peft_config == LoraConfig(lora_rank=8)
    assert config.dataset_preprocess_config == TorchTuneInstructDataset(source=DataFormat.CSV)


def test_plain_data_with_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown field rank of LoraConfig; known are apply_lora_to_mlp"):
        TorchTuneConfig.from_dict({"peft_config": {"rank": 8}})
