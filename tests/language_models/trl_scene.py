"""Trainings with the real TRL, in an environment that has it: ``python trl_scene.py DEED FOLDER [SETTINGS]``.

Each deed prints one line of JSON. Model, tokenizer and data are made here: nothing comes from a network.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from trainer_core import (
    BuiltinTrainer,
    Checkpoints,
    FileDatasetInitializer,
    FileModelInitializer,
    Initializer,
    LocalProcessBackendConfig,
    TrainerClient,
    TRLConfig,
)
from trainer_core.node import env

WORDS = ["<pad>", "<eos>", "<unk>", "user", "assistant", *(f"w{number}" for number in range(40))]
#: A row of the dataset by method.
ROWS = {
    "sft": lambda n: {"prompt": f"w{n % 40} w{(n + 1) % 40}", "completion": f" w{(n + 2) % 40}"},
    "dpo": lambda n: {"prompt": f"w{n % 40}", "chosen": f" w{(n + 1) % 40}", "rejected": f" w{(n + 2) % 40}"},
    "reward": lambda n: {"prompt": f"w{n % 40}", "chosen": f" w{(n + 1) % 40}", "rejected": f" w{(n + 2) % 40}"},
    "kto": lambda n: {"prompt": f"w{n % 40}", "completion": f" w{(n + 1) % 40}", "label": bool(n % 2)},
    "grpo": lambda n: {"prompt": f"w{n % 40} w{(n + 1) % 40}"},
}
OF_METHOD = {
    "grpo": {"arguments": {"num_generations": 2, "max_completion_length": 4}},
    "sft": {"use_peft": True, "lora_r": 4, "merge_adapter": True, "eval_strategy": "epoch"},
}


def short(completions, **kwargs):
    """Reward short completions."""
    return [-float(len(each)) for each in completions]


def make(root: Path) -> None:
    """Make a Llama of two layers, a tokenizer of words, and a dataset for each method."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(root / "model")
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=64,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(root / "model")
    for method, row in ROWS.items():
        folder = root / method
        folder.mkdir()
        for split, count in (("train", 64), ("test", 4)):
            lines = [json.dumps(row(number)) + "\n" for number in range(count)]
            (folder / f"{split}.jsonl").write_text("".join(lines))


def start(client: TrainerClient, root: Path, method: str, data: str, options: tuple = (), **settings) -> str:
    rewards = {"reward_funcs": [short]} if method == "grpo" else {}
    values = {"per_device_train_batch_size": 2, "logging_steps": 1, "num_proc_per_node": 2, "seed": 7, **settings}
    config = TRLConfig(method=method, **{**OF_METHOD.get(method, {}), **rewards, **values})
    initializer = Initializer(
        dataset=FileDatasetInitializer((root / data).as_uri()), model=FileModelInitializer((root / "model").as_uri())
    )
    return client.train(runtime="trl-llm", trainer=BuiltinTrainer(config), initializer=initializer, options=options)


def train(client: TrainerClient, root: Path, method: str, data: str = "", **settings) -> dict:
    """Train once; return the outcome, and what a fresh process finds in the model."""
    seen = []
    job = start(client, root, method, data or method, **settings)
    outcome = client.wait(job, on_observation=lambda each: seen.append(each.progress))
    reason = outcome.diagnosis.reason if outcome.diagnosis else ""
    found = {"status": outcome.status, "reason": reason, "metrics": outcome.metrics}
    if outcome.status != "Complete":
        return found
    folders = {name: Path(uri.removeprefix("file://")) for name, uri in outcome.artifacts.items()}
    last = [(each.step, each.total) for each in seen if each][-1]
    card = (folders["model"] / "README.md").read_text()
    files = {name: sorted(each.name for each in folder.iterdir()) for name, folder in folders.items()}
    return {**found, "progress": last, "card": card, "files": files, "folders": {n: str(f) for n, f in folders.items()}}


def resume(client: TrainerClient, root: Path, method: str, **settings) -> dict:
    """Kill all processes after a checkpoint, retry, train undisturbed; return what both left."""
    options = (Checkpoints(every_steps=10),)
    values = {"max_steps": 60, "merge_adapter": None, "eval_strategy": None, **settings}
    if method != "sft":
        values = {name: value for name, value in values.items() if value is not None}
    job = start(client, root, method, method, options, **values)
    while not list((root / "home" / "checkpoints").rglob("step-*10/trainer_state.json")):
        time.sleep(0.05)
    victims = [each for each in psutil.process_iter() if is_node(each, job)]
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    killed = client.wait(job)
    again = client.retry(job)
    resumed = client.wait(again)
    undisturbed = client.wait(start(client, root, method, method, options, **values))
    lines = [line for line in client.get_job_logs(again) if "resumed from step" in line]
    return {
        "killed": [len(victims) > 0, killed.status],
        "resumed": lines,
        "statuses": [resumed.status, undisturbed.status],
        "weights": [hash_weights(resumed), hash_weights(undisturbed)],
    }


def is_node(process: psutil.Process, job: str) -> bool:
    try:
        return process.environ().get(env.NAME) == job and env.PAYLOAD in process.environ()
    except psutil.Error:
        return False


def hash_weights(outcome) -> dict:
    folder = Path(outcome.artifacts["model"].removeprefix("file://"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


if __name__ == "__main__":
    deed, root, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    os.environ["HF_HUB_OFFLINE"] = "1"
    if deed == "make":
        make(root)
    else:
        client = TrainerClient(LocalProcessBackendConfig(home=root / "home"))
        print(json.dumps(globals()[deed](client, root, **given)))
