"""The training function of a `TRLConfig`: runs ``trl.scripts.<method>`` in each process that torchrun has started.

It travels as the source of the job's function: standard library only, and TRL where it trains.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Columns of a dataset by method: one of the sets.
COLUMNS: dict[str, list[set[str]]] = {
    "sft": [{"messages"}, {"prompt", "completion"}, {"text"}, {"input_ids"}],
    "dpo": [{"chosen", "rejected"}],
    "reward": [{"chosen", "rejected"}],
    "kto": [{"prompt", "completion", "label"}],
    "grpo": [{"prompt"}],
}
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_REWARDS = "trainjob_rewards"
_PAUSE = 0.2


def train(
    method: str,
    arguments: dict[str, Any] | None = None,
    functions: dict[str, Any] | None = None,
    sources: dict[str, str] | None = None,
    merge_adapter: bool = False,
    **settings: Any,
) -> dict[str, Any] | None:
    """Train by a method; return the last metrics, and the folder of the model as an artifact."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:  # A folder of this name is not the library.
        raise ModuleNotFoundError(
            "trl is not installed where the job runs: pip install 'trl[peft]', an image that has it, or "
            "TRLConfig(packages_to_install=['trl[peft]'])"
        )
    from trainer_core import checkpoint_path, checkpoints, output_path

    functions = functions or {}
    settings = {**settings, **(arguments or {})}
    if not settings.get("model_name_or_path"):
        settings["model_name_or_path"] = _find_source("model", "model_name_or_path")
    if "dataset" in functions:
        settings["dataset_name"] = _build_dataset(functions["dataset"])
    elif not (settings.get("dataset_name") or settings.get("datasets")):
        settings["dataset_name"] = _find_source("dataset", "dataset_name")
    check_columns(method, settings)
    if functions.get("rewards"):
        settings["reward_funcs"] = [*settings.get("reward_funcs", []), *_load_rewards(functions["rewards"])]
    node, output = os.environ.get("GROUP_RANK", "0"), output_path()
    folder = output / "model" if node == "0" else output / f".node-{node}"
    settings.setdefault("output_dir", str(folder))
    settings.setdefault("report_to", "none")
    checkpoints()  # The handler of SIGTERM is there before TRL is imported.
    if not {"save_strategy", "save_steps"} & settings.keys():
        settings.update(save_strategy="no", save_total_limit=1)
        settings["resume_from_checkpoint"] = checkpoint_path() and str(checkpoint_path())
    callback = _add_callback()
    if not _has_accelerator():
        settings.setdefault("use_cpu", True)
    sys.argv[1:] = to_words(settings)
    try:
        runpy.run_module(f"trl.scripts.{method}", run_name="__main__", alter_sys=True)
    except Exception as error:
        _explain(error, settings)
        raise
    if checkpoints().rank != 0:
        return None
    origin = {"model": settings["model_name_or_path"], "dataset": settings.get("dataset_name"), **(sources or {})}
    card = {"base model": origin["model"], "dataset": origin["dataset"], "method": method}
    return _leave_model(card, settings, callback.metrics, merge_adapter)


def to_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line: None is left out, a list is several words, a dict is JSON."""
    words: list[str] = []
    for name, value in settings.items():
        if value is not None:
            values = value if isinstance(value, (list, tuple)) else [value]
            words += [f"--{name}", *(json.dumps(v) if isinstance(v, dict) else str(v) for v in values)]
    return words


def check_columns(method: str, settings: Mapping[str, Any]) -> None:
    """Raise if the dataset of a folder has not the columns that the method needs; other datasets TRL checks."""
    folder = Path(str(settings.get("dataset_name")))
    columns, path = _read_columns(folder) if folder.is_dir() else (None, folder)
    named = settings.get("dataset_text_field") if method == "sft" else None
    needed = [*COLUMNS[method], *([{named}] if named else [])]
    if columns is not None and not any(each <= columns for each in needed):
        texts = " or ".join(" with ".join(sorted(each)) for each in needed)
        raise ValueError(
            f"the dataset has the columns {', '.join(sorted(columns))} in {path.name}, and {method} needs {texts}; "
            "rename its columns"
        )


def _read_columns(folder: Path) -> tuple[set[str] | None, Path]:
    """Return the columns of the first file that has some, and the file; None if they are not known."""
    path = next((each for each in sorted(folder.rglob("*")) if each.suffix in _SUFFIXES and each.stat().st_size), None)
    if path is None:
        found = ", ".join(sorted(each.name for each in folder.iterdir())[:5]) or "nothing"
        raise FileNotFoundError(f"the dataset has no file of JSONL, JSON, CSV or Parquet; {folder} contains {found}")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return set(pyarrow.parquet.read_schema(path).names), path
        with path.open(encoding="utf-8-sig") as file:
            if path.suffix == ".csv":
                import csv

                return set(next(csv.reader(file))), path
            row = json.loads(file.readline())
    except (ValueError, ImportError, OSError, StopIteration):
        return None, path
    return (set(row), path) if isinstance(row, dict) else (None, path)


def _find_source(what: str, field: str) -> str:
    """Return the folder that the initializer has filled."""
    import trainer_core

    folder = getattr(trainer_core, f"{what}_path")()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no {what}: give an initializer for it, or TRLConfig({field}=…)")
    return str(folder)


def _load(code: Mapping[str, Any]) -> Callable[..., Any]:
    from trainer_core.node.load_function import load

    return load(code, Path(tempfile.mkdtemp(prefix="trainjob_")))


def _load_rewards(codes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Put the functions into a module, from which TRL imports them by name."""
    module = sys.modules[_REWARDS] = types.ModuleType(_REWARDS)
    for code in codes:
        setattr(module, code["entry"], _load(code))
    return [f"{_REWARDS}.{code['entry']}" for code in codes]


def _build_dataset(code: Mapping[str, Any]) -> str:
    """Write what the function returns as files, once on each node, and return their folder."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder = Path(tempfile.gettempdir(), f"trainjob-dataset-{os.getppid()}-{attempt}")
    if os.environ.get("LOCAL_RANK", "0") != "0":
        while not folder.is_dir():  # torchrun ends this process if the first one fails.
            time.sleep(_PAUSE)
        return str(folder)
    data = _load(code)()
    splits = data if isinstance(data, dict) else {"train": data}
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    for name, rows in splits.items():
        with (part / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return str(folder)


def _has_accelerator() -> bool:
    import torch

    return bool((torch.accelerator if hasattr(torch, "accelerator") else torch.cuda).is_available())


def _add_callback() -> Any:
    """Give each Trainer of transformers a callback that saves our checkpoints and reports progress; return it."""
    import torch
    import transformers.trainer

    from trainer_core import checkpoints, progress

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        metrics: Mapping[str, Any] = types.MappingProxyType({})
        trainer: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress(state.global_step, state.max_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress(state.global_step, state.max_steps)
            if args.save_strategy == "no":
                control.should_save = checkpoints().due(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            numbers = {name: each for name, each in (logs or {}).items() if isinstance(each, (int, float))}
            self.metrics = {**self.metrics, **numbers}
            progress(state.global_step, state.max_steps, numbers)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if args.save_strategy != "no":
                return
            if torch.distributed.is_initialized():
                torch.distributed.barrier()  # Each rank has written its part.
            with checkpoints().save(state.global_step, self.metrics) as folder:
                if args.local_process_index == 0:
                    saved = Path(args.output_dir, f"checkpoint-{state.global_step}")
                    shutil.copytree(saved, folder, dirs_exist_ok=True)

    callback = Callback()
    transformers.trainer.DEFAULT_CALLBACKS.append(callback)
    train = transformers.Trainer.train

    def train_and_keep(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        # Freed at once, its process group of gloo can wait for a thread that waits for the lock of Python.
        callback.trainer = trainer
        return train(trainer, *args, **kwargs)

    transformers.Trainer.train = train_and_keep
    return callback


def _explain(error: Exception, settings: Mapping[str, Any]) -> None:
    """Add to an error what to change, where that is known."""
    text, batch = str(error), settings.get("per_device_train_batch_size")
    hint = ""
    if "OutOfMemory" in type(error).__name__:
        hint = f"per_device_train_batch_size is {batch or 'the default of TRL'}; use half of it, and twice the "
        hint += "gradient_accumulation_steps, or gradient_checkpointing=True"
    elif "chat_template" in text or "chat template" in text:
        hint = "the tokenizer has no chat template: use a model with one, or give arguments={'chat_template_path': …}"
    elif "pad_token" in text or "padding token" in text:
        hint = "the tokenizer has no pad token: give arguments={'pad_token': …}"
    if hint:
        error.args = (f"{text.strip()}: {hint}",)


def _leave_model(
    card: dict[str, Any], settings: Mapping[str, Any], metrics: Mapping[str, Any], merge_adapter: bool
) -> dict[str, Any]:
    """Complete the folder of the model, and return the result of the job."""
    folder = Path(settings["output_dir"])
    if settings.get("save_strategy") == "no":
        for each in folder.glob("checkpoint-*"):
            shutil.rmtree(each, ignore_errors=True)
    own = ("model_name_or_path", "dataset_name", "output_dir", "resume_from_checkpoint", "report_to")
    given = {name: value for name, value in settings.items() if name not in own}
    card = {**card, "TrainJob": os.environ.get("TRAINJOB_NAME"), **given, **metrics}
    artifacts = {"model": folder.as_uri()}
    is_adapter = (folder / "adapter_config.json").is_file()
    if merge_adapter and is_adapter:
        from peft import AutoPeftModelForCausalLM
        from transformers import AutoTokenizer

        merged = folder.with_name("merged")
        AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload().save_pretrained(merged)
        AutoTokenizer.from_pretrained(folder).save_pretrained(merged)
        _write_card(merged, "transformers", card)
        artifacts["merged"] = merged.as_uri()
    _write_card(folder, "peft" if is_adapter else "transformers", card)
    return {"metrics": dict(metrics), "artifacts": artifacts}


def _write_card(folder: Path, library: str, card: Mapping[str, Any]) -> None:
    table = "".join(f"| {name} | {value} |\n" for name, value in card.items() if value is not None)
    head = f"---\nlibrary_name: {library}\ntags: [trl, {card['method']}]\n---\n\n# Model of a TrainJob\n\n"
    (folder / "README.md").write_text(f"{head}| | |\n| --- | --- |\n{table}", encoding="utf-8")
