"""TorchTuneConfig: the recipe that fine-tunes a language model with torchtune."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainer_core.base import resources, validation
from trainer_core.base.secrets import redact
from trainer_core.model.recipe import Recipe
from trainer_core.node import env

_E = TypeVar("_E", bound=Enum)
_TOP_FIELDS = ("dtype", "batch_size", "epochs", "loss")
_LORA_FIELDS = (
    "apply_lora_to_mlp",
    "apply_lora_to_output",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "quantize_base",
    "use_dora",
)


class DataType(Enum):
    """Precision of the weights (``dtype`` of torchtune)."""

    BF16 = "bf16"
    FP32 = "fp32"


class DataFormat(Enum):
    """Format of the dataset's files."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    TEXT = "text"
    XML = "xml"


class Loss(Enum):
    """Loss functions of torchtune, by import path."""

    CEWithChunkedOutputLoss = "torchtune.modules.loss.CEWithChunkedOutputLoss"


@dataclass
class LoraConfig:
    """Fine-tune with LoRA: train low-rank matrices beside frozen weights.

    A field that is None keeps the default of the recipe. Upstream: ``model.*`` settings of [torchtune's LoRA
    recipes](https://docs.pytorch.org/torchtune/stable/tutorials/lora_finetune.html).

    Args:
        apply_lora_to_mlp: Also apply LoRA to the MLP layers.
        apply_lora_to_output: Also apply LoRA to the output projection.
        lora_attn_modules: Projections of each attention block to which LoRA is applied.
        lora_rank: Rank of the matrices, at least 1.
        lora_alpha: Scaling factor of the matrices, at least 1.
        lora_dropout: Dropout probability, 0 to 1.
        quantize_base: Quantize the frozen weights to four bits (QLoRA).
        use_dora: Decompose weights into magnitude and direction (DoRA).

    Raises:
        ValueError: A value has the wrong type or is out of range.
    """

    apply_lora_to_mlp: bool | None = None
    apply_lora_to_output: bool | None = None
    lora_attn_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj", "output_proj"])
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float | None = None
    quantize_base: bool | None = None
    use_dora: bool | None = None

    def __post_init__(self) -> None:
        for name in ("apply_lora_to_mlp", "apply_lora_to_output", "quantize_base", "use_dora"):
            _check_flag(name, getattr(self, name))
        validation.check_strings("lora_attn_modules", self.lora_attn_modules, "q_proj")
        validation.check_count("lora_rank", self.lora_rank)
        validation.check_count("lora_alpha", self.lora_alpha)
        validation.check_fraction("lora_dropout", self.lora_dropout)


@dataclass
class TorchTuneInstructDataset:
    """Convert the dataset into instructions and answers (``torchtune.datasets.instruct_dataset``).

    A field that is None keeps torchtune's default.

    Args:
        source: Format of the files; a `DataFormat` or its value.
        split: Part of the dataset, such as ``"train[:90%]"``.
        train_on_input: Also compute the loss on the prompt.
        new_system_prompt: System prompt to prepend to each sample.
        column_map: Column names by role, such as ``{"input": "question", "output": "answer"}``.

    Raises:
        ValueError: A value has the wrong type.
    """

    source: DataFormat | None = None
    split: str | None = None
    train_on_input: bool | None = None
    new_system_prompt: str | None = None
    column_map: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.source = _member(DataFormat, "source", self.source)
        _check_flag("train_on_input", self.train_on_input)
        validation.check_mapping("column_map", self.column_map, "{'input': 'question', 'output': 'answer'}")


@dataclass
class TorchTuneConfig(Recipe):
    """Settings of the torchtune recipe. A field that is None keeps the default of the recipe.

    Args:
        dtype: Precision of the weights; a `DataType` or its value.
        batch_size: Samples per batch, at least 1.
        epochs: Passes over the dataset, at least 1.
        loss: A `Loss`, its name or its value.
        num_nodes: Number of nodes, at least 1 (``spec.trainer.numNodes``).
        peft_config: Fine-tune with LoRA instead of training all weights.
        dataset_preprocess_config: How the dataset is converted into instructions.
        resources_per_node: Kubernetes quantities by resource name (``spec.trainer.resourcesPerNode``).

    Raises:
        ValueError: A value has the wrong type or is out of range.

    Example:
        ```python
        BuiltinTrainer(TorchTuneConfig(epochs=1, batch_size=2, resources_per_node={"gpu": 1}))
        ```
    """

    framework = "torchtune"
    command = ("tune", "run")

    dtype: DataType | None = None
    batch_size: int | None = None
    epochs: int | None = None
    loss: Loss | None = None
    num_nodes: int | None = None
    peft_config: LoraConfig | None = None
    dataset_preprocess_config: TorchTuneInstructDataset | None = None
    resources_per_node: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.dtype = _member(DataType, "dtype", self.dtype)
        self.loss = _member(Loss, "loss", self.loss)
        for name in ("batch_size", "epochs", "num_nodes"):
            validation.check_count(name, getattr(self, name))
        _check_kind("peft_config", self.peft_config, LoraConfig)
        _check_kind("dataset_preprocess_config", self.dataset_preprocess_config, TorchTuneInstructDataset)
        resources.check_resources("resources_per_node", self.resources_per_node)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TorchTuneConfig:
        """Build the settings from plain data: see `Recipe`."""
        fields = validation.known_fields(cls, data)
        for name, kind in (("peft_config", LoraConfig), ("dataset_preprocess_config", TorchTuneInstructDataset)):
            if isinstance(fields.get(name), Mapping):
                fields[name] = kind(**validation.known_fields(kind, fields[name]))
        return cls(**fields)

    @classmethod
    def to_args(cls, config: Mapping[str, Any], dataset_uri: str | None = None) -> list[str]:
        """Return ``key=value`` strings.

        A file or folder named in a Hugging Face dataset (``hf://owner/name/path``) is passed to the recipe.
        """
        return [
            *[f"{name}={config[name]}" for name in _TOP_FIELDS if config.get(name) is not None],
            *_data_location(dataset_uri),
            *_lora_arguments(config.get("peft_config")),
            *_dataset_arguments(config.get("dataset_preprocess_config")),
        ]


@dataclass(frozen=True)
class TorchtuneModel:
    """A model that Trainer fine-tunes with torchtune."""

    #: Prefix of torchtune's configurations of the model.
    config: str
    uri: str
    #: Arguments that set the tokenizer.
    tokenizer: tuple[str, ...] = ("tokenizer.path=/workspace/model/original/tokenizer.model",)

    @property
    def args(self) -> tuple[str, ...]:
        """Arguments of every recipe of the model, before those of the request."""
        return (
            *("dataset=torchtune.datasets.instruct_dataset", "dataset.source=parquet"),
            *("dataset.data_dir=/workspace/dataset/data", "output_dir=/workspace/output"),
            *self.tokenizer,
            "checkpointer.checkpoint_dir=/workspace/model",
        )


#: Models by the name of the runtime, from which Trainer reads the model: torchtune-llama3.2-1b is llama3_2/1B.
MODELS: Mapping[str, TorchtuneModel] = {
    "torchtune-llama3.2-1b": TorchtuneModel("llama3_2/1B", "hf://meta-llama/Llama-3.2-1B-Instruct"),
    "torchtune-llama3.2-3b": TorchtuneModel("llama3_2/3B", "hf://meta-llama/Llama-3.2-3B-Instruct"),
    "torchtune-llama3.3-70b": TorchtuneModel("llama3_3/70B", "hf://meta-llama/Llama-3.3-70B-Instruct"),
    "torchtune-qwen2.5-1.5b": TorchtuneModel(
        "qwen2_5/1.5B",
        "hf://Qwen/Qwen2.5-1.5B-Instruct",
        ("tokenizer.path=/workspace/model/vocab.json", "tokenizer.merges_file=/workspace/model/merges.txt"),
    ),
}


def _data_location(dataset_uri: str | None) -> list[str]:
    folder = env.DEFAULTS[env.DATASET_PATH]
    if dataset_uri and dataset_uri.startswith("pvc://"):
        # The folder of the URI is mounted there.
        return [f"dataset.data_dir={folder}"]
    if not dataset_uri or not dataset_uri.startswith("hf://"):
        return []
    inner = urlsplit(dataset_uri).path.strip("/").split("/", 1)[1:]
    # A path with a dot is a file, a path without one is a folder.
    key = "dataset.data_files" if inner and "." in inner[0] else "dataset.data_dir"
    return [f"{key}={'/'.join([folder, *inner])}"]


def _lora_arguments(config: Mapping[str, Any] | None) -> list[str]:
    if config is None:
        return []
    given = [f"model.{name}={config[name]}" for name in _LORA_FIELDS if config.get(name) is not None]
    modules = config.get("lora_attn_modules")
    return [*given, f"model.lora_attn_modules=[{','.join(modules)}]"] if modules else given


def _dataset_arguments(config: Mapping[str, Any] | None) -> list[str]:
    if config is None:
        return []
    given = ["dataset=torchtune.datasets.instruct_dataset"]
    for name in ("source", "split", "train_on_input", "new_system_prompt"):
        if config.get(name) is not None:
            given.append(f"dataset.{name}={config[name]}")
    if config.get("column_map"):
        given.append(f"dataset.column_map={json.dumps(config['column_map'], ensure_ascii=False)}")
    return given


def _member(kind: type[_E], what: str, value: object) -> _E | None:
    """Return the member of an enum for a member, a value or a name."""
    if value is None or isinstance(value, kind):
        return value
    for member in kind:
        if value in (member.value, member.name):
            return member
    known = ", ".join(repr(member.value) for member in kind)
    raise ValueError(f"{what} must be one of {known}; got {redact(value)}")


def _check_flag(what: str, value: object) -> None:
    if value is not None and not isinstance(value, (bool, str)):
        raise ValueError(f"{what} must be True or False, got {redact(value)}")


def _check_kind(what: str, value: object, kind: type[Any]) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{what} must be a {kind.__name__}, got {type(value).__name__}")
