"""Every week: fine-tune a language model with LoRA by TRL, evaluate it, and promote it if it is better than the last.

The model is a tiny Llama that the first task makes, so that the DAG runs on two cores and needs no hub. TRL is
installed for its jobs: ``POSTTRAIN_PACKAGES`` names other packages, and is empty where TRL is there already.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import dag, get_current_context, task
from energy import DEFAULT_ARGS

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import BuiltinTrainer, Checkpoints, CustomTrainer, FileModelInitializer, Initializer, TRLConfig

PACKAGES = os.environ.get("POSTTRAIN_PACKAGES", "trl[peft]==1.16.0 transformers==5.24.0 tokenizers==0.23.3").split()
ASSISTANT = ModelAsset("tiny-assistant", metric="eval_loss", mode="min")


def make_model() -> dict[str, Any]:
    """Make a Llama of two layers with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from trainer_core import output_path

    folder = output_path() / "tiny"
    words = ["<pad>", "<eos>", "<unk>", "plus", "is", *map(str, range(80))]
    unknown = {"unk_token": "<unk>"}
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, **unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", **unknown}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), eos_token_id=1, **sizes)).save_pretrained(folder)
    return {"artifacts": {"model": folder.as_uri()}}


def sums() -> dict[str, list[dict[str, str]]]:
    """Return the dataset: sums to learn, and others to evaluate."""
    rows = [{"prompt": f"{number} plus 1 is", "completion": f" {number + 1}"} for number in range(72)]
    return {"train": rows[:64], "test": rows[64:]}


@dag(
    schedule="@weekly",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def posttrain_llm() -> None:
    """Make a model, fine-tune it, and promote it by its loss in the evaluation."""
    base = TrainJobOperator(
        task_id="make_model", runtime="python", trainer=CustomTrainer(func=make_model, packages_to_install=PACKAGES)
    )
    train = TrainJobOperator(
        task_id="train",
        runtime="trl-llm",
        initializer=Initializer(
            model=FileModelInitializer("{{ ti.xcom_pull(task_ids='make_model', key='artifacts')['model'] }}")
        ),
        trainer=BuiltinTrainer(
            TRLConfig(
                method="sft",
                dataset=sums,
                num_train_epochs=2,
                learning_rate=1e-3,
                use_peft=True,
                lora_r=4,
                eval_strategy="epoch",
                packages_to_install=PACKAGES,
            )
        ),
        options=[Checkpoints(every_steps=10)],
        deferrable=True,
        execution_timeout=timedelta(hours=2),
    )

    @task.short_circuit(inlets=[ASSISTANT])
    def is_better(metrics: dict[str, float]) -> bool:
        return ASSISTANT.is_improved_by(metrics, get_current_context()["inlet_events"])

    @task(outlets=[ASSISTANT])
    def promote(metrics: dict[str, float], artifacts: dict[str, str]) -> str:
        model = {"metrics": metrics, "artifacts": artifacts, "artifact_uri": artifacts["model"]}
        get_current_context()["outlet_events"][ASSISTANT].extra = model
        return artifacts["model"]

    base >> train
    is_better(train.output["metrics"]) >> promote(train.output["metrics"], train.output["artifacts"])


posttrain_llm()
