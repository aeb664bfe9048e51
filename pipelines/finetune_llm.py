"""Fine-tune a language model with LoRA as a KFP pipeline: a recipe of Kubeflow Trainer, so there is no training code.

Needs a cluster with Kubeflow Trainer, its runtime ``torchtune-llama3.2-1b``, and a Secret ``huggingface`` with a token
that may read the model.

    python pipelines/compile.py        compile it again
"""

from typing import Dict

from kfp import dsl

from kfp_components.tasks import train_task, wait_task
from trainer_core import (
    BuiltinTrainer,
    DataFormat,
    DeleteAfter,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    LoraConfig,
    SecretRef,
    TorchTuneConfig,
    TorchTuneInstructDataset,
)

_A_WEEK = 7 * 24 * 3600
#: KFP retries a task only within this time of its first start; its default is an hour.
_RETRY_WINDOW = "30d"


@dsl.pipeline(name="finetune-llm", description="Fetch a model and instructions, and fine-tune with LoRA.")
def finetune_llm(
    dataset_uri: str = "hf://tatsu-lab/alpaca",
    backend_config: Dict = {},  # noqa: B006 - KFP takes it for an optional input, and never changes it
) -> Dict:
    """Fine-tune on two GPUs.

    Args:
        dataset_uri: Instructions.
        backend_config: Such as {"namespace": "team-a"}.
    """
    trained = train_task(
        runtime="torchtune-llama3.2-1b",
        initializer=Initializer(
            dataset=HuggingFaceDatasetInitializer("hf://tatsu-lab/alpaca"),
            model=HuggingFaceModelInitializer(
                "hf://meta-llama/Llama-3.2-1B-Instruct", access_token=SecretRef("huggingface", "token")
            ),
        ),
        trainer=BuiltinTrainer(
            TorchTuneConfig(
                epochs=1,
                batch_size=4,
                resources_per_node={"gpu": 2},
                dataset_preprocess_config=TorchTuneInstructDataset(source=DataFormat.PARQUET, split="train[:95%]"),
                peft_config=LoraConfig(apply_lora_to_mlp=True, lora_rank=16, lora_alpha=32),
            )
        ),
        options=[DeleteAfter(_A_WEEK)],
        backend="kubernetes",
        backend_config=backend_config,
        dataset_uri=dataset_uri,
    )
    waited = wait_task(job=trained.outputs["job"], attempts=3, backoff=60, backend_config=backend_config)
    for task in (trained, waited):
        # Each try finds the TrainJob of the first.
        task.set_retry(3, backoff_duration="30s", backoff_max_duration=_RETRY_WINDOW)
    return trained.outputs["job"]
