"""Fine-tune a language model with LoRA, using a packaged recipe of Kubeflow Trainer instead of training code.

Needs a cluster with Kubeflow Trainer, its runtime ``torchtune-llama3.2-1b``, and a Secret ``huggingface`` with a token
that has access to the model.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import Param, dag
from energy import DEFAULT_ARGS

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import (
    BuiltinTrainer,
    DataFormat,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    Labels,
    LoraConfig,
    SecretRef,
    TorchTuneConfig,
    TorchTuneInstructDataset,
)

# A recipe returns no metrics or artifacts, so the asset event has only the ref of the TrainJob.
ASSISTANT = ModelAsset("assistant")
TOKEN = SecretRef("huggingface", "token")


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={"dataset": Param("tatsu-lab/alpaca", type="string", description="Instructions, on the Hugging Face hub.")},
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example", "kubernetes"],
)
def finetune_llm() -> None:
    """Download model and instructions, and fine-tune on two GPUs."""
    TrainJobOperator(
        task_id="finetune",
        backend="kubernetes",
        trainjob_conn_id="trainjob_cluster",
        runtime="torchtune-llama3.2-1b",
        initializer=Initializer(
            dataset=HuggingFaceDatasetInitializer("hf://{{ params.dataset }}"),
            model=HuggingFaceModelInitializer("hf://meta-llama/Llama-3.2-1B-Instruct", access_token=TOKEN),
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
        options=[Labels({"team": "assistant"})],
        outlets=[ASSISTANT],
        deferrable=True,
        execution_timeout=timedelta(hours=12),
    )


finetune_llm()
