"""Models that Trainer 2.3 fine-tunes with torchtune. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MODELS", "Model"]


@dataclass(frozen=True)
class Model:
    """A model, and what its recipe must be told.

    Attributes:
        recipe: torchtune's configuration.
        uri: Where the model lies.
        tokenizer: Arguments that name its tokenizer.
    """

    recipe: str
    uri: str
    tokenizer: tuple[str, ...] = ("tokenizer.path=/workspace/model/original/tokenizer.model",)

    def command(self) -> list[str]:
        """Return the command of the runtime; Trainer replaces its recipe, and appends what a TrainJob says."""
        return [
            *("tune", "run", "--rdzv_endpoint=localhost:29500", "full_finetune_distributed", "--config", self.recipe),
            *("dataset=torchtune.datasets.instruct_dataset", "dataset.source=parquet"),
            *("dataset.data_dir=/workspace/dataset/data", "output_dir=/workspace/output"),
            *self.tokenizer,
            "checkpointer.checkpoint_dir=/workspace/model",
        ]


#: By the name that the runtime must have: Trainer reads the model from it.
MODELS: Mapping[str, Model] = {
    "torchtune-llama3.2-1b": Model("llama3_2/1B_full", "hf://meta-llama/Llama-3.2-1B-Instruct"),
    "torchtune-llama3.2-3b": Model("llama3_2/3B_full", "hf://meta-llama/Llama-3.2-3B-Instruct"),
    "torchtune-llama3.3-70b": Model("llama3_3/70B_full", "hf://meta-llama/Llama-3.3-70B-Instruct"),
    "torchtune-qwen2.5-1.5b": Model(
        "qwen2_5/1.5B_full",
        "hf://Qwen/Qwen2.5-1.5B-Instruct",
        ("tokenizer.path=/workspace/model/vocab.json", "tokenizer.merges_file=/workspace/model/merges.txt"),
    ),
}
