"""TRLConfig: post-training of a language model with TRL. Its program is the training function `trl_program`."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from trainer_core.base import resources, validation
from trainer_core.base.secrets import SecretRef, parse_secret, redact
from trainer_core.model import func_args
from trainer_core.model.recipe import Recipe
from trainer_core.node import load_function
from trainer_core.packaging import serializer

METHODS = ("sft", "dpo", "grpo", "kto", "reward")
#: Fields of TRL that only some methods have.
_OF_METHODS = {
    "packing": ("sft",),
    "beta": ("dpo", "grpo", "kto"),
    "max_length": ("sft", "dpo", "kto", "reward"),
    "reward_funcs": ("grpo",),
}
#: What the job sets itself.
_RESERVED = ("output_dir", "resume_from_checkpoint", "config")
#: Files of TRL and transformers with the classes whose fields are the arguments of a script.
_SOURCES = {
    "trl": (
        *("trainer/{0}_config.py", "trainer/base_config.py", "trainer/model_config.py"),
        *("scripts/utils.py", "scripts/{0}.py"),
    ),
    "transformers": ("training_args.py",),
}
_PROGRAM = Path(__file__).with_name("trl_program.py")
_ENTRY = "train"


@dataclass
class TRLConfig(Recipe):
    """Train a language model with [TRL](https://huggingface.co/docs/trl): ``torchrun`` runs ``trl.scripts.<method>``.

    The fields have TRL's own names and meanings; one that is None keeps TRL's default. Model and dataset are those of
    the initializers, a folder of JSONL, CSV or Parquet, unless they are named here. The result is the artifact
    ``model``.

    Args:
        method: ``sft``, ``dpo``, ``grpo``, ``kto`` or ``reward``.
        model_name_or_path: Folder or name of the model. The default is what the model initializer fetched.
        dataset_name: Folder or name of the dataset. The default is what the dataset initializer fetched.
        dataset: A function that returns the dataset where it trains, or its import path
            ``"package.module:function"``: a list of rows, or a dict of them by split. It travels as a function does.
        learning_rate: Initial learning rate.
        num_train_epochs: Passes over the dataset.
        max_steps: Number of steps, instead of epochs.
        per_device_train_batch_size: Samples of a process in a batch.
        gradient_accumulation_steps: Batches before a step.
        max_length: Longest sequence in tokens; not with ``grpo``.
        use_peft: Train an adapter with LoRA instead of all weights.
        lora_r: Rank of LoRA.
        lora_alpha: Scaling of LoRA.
        merge_adapter: Also leave the model with the adapter merged into it, as the artifact ``merged``.
        packing: Put several samples into a sequence; only with ``sft``.
        beta: Weight of the distance to the base model; with ``dpo``, ``grpo`` and ``kto``.
        dtype: Precision in which the model is loaded, such as ``bfloat16``.
        bf16: Whether to train in mixed precision with bfloat16.
        gradient_checkpointing: Compute activations again instead of keeping them in memory.
        eval_strategy: When to evaluate the split ``test``: ``no``, ``steps`` or ``epoch``.
        eval_steps: Steps between two evaluations.
        logging_steps: Steps between two logs.
        save_steps: Steps between two checkpoints in the folder of the model, which no retry resumes from. The default
            is the option `Checkpoints`.
        seed: Seed of the random numbers.
        reward_funcs: Rewards of ``grpo``: functions, which are packaged as training functions, import paths
            ``"package.module:function"``, or TRL's own names.
        arguments: Every other argument of TRL by its name, such as ``{"warmup_ratio": 0.1}``.
        num_nodes: Number of nodes, at least 1.
        num_proc_per_node: Processes per node, at least 1. The default is derived from the resources.
        resources_per_node: Kubernetes quantities by resource name.
        image: Container image with TRL. The default is the runtime's image.
        packages_to_install: Requirements that pip installs before, such as ``["trl[peft]==1.16.0"]``.
        env: Environment variables of the nodes.

    Raises:
        ValueError: An unknown method or argument, or a value of the wrong type. Where TRL is installed, its classes are
            read; nothing of it is imported.

    Example:
        ```python
        BuiltinTrainer(TRLConfig(method="sft", max_steps=100, use_peft=True, resources_per_node={"gpu": 1}))
        ```
    """

    framework = "trl"
    command = ("torchrun",)
    trainer_fields = ("num_nodes", "num_proc_per_node", "resources_per_node", "image", "env")
    runs_functions = True

    method: Literal["sft", "dpo", "grpo", "kto", "reward"]
    model_name_or_path: str | None = None
    dataset_name: str | None = None
    dataset: Callable[..., Any] | str | None = None
    learning_rate: float | None = None
    num_train_epochs: float | None = None
    max_steps: int | None = None
    per_device_train_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    max_length: int | None = None
    use_peft: bool | None = None
    lora_r: int | None = None
    lora_alpha: int | None = None
    merge_adapter: bool | None = None
    packing: bool | None = None
    beta: float | None = None
    dtype: str | None = None
    bf16: bool | None = None
    gradient_checkpointing: bool | None = None
    eval_strategy: str | None = None
    eval_steps: int | None = None
    logging_steps: int | None = None
    save_steps: int | None = None
    seed: int | None = None
    reward_funcs: list[Callable[..., Any] | str] | None = None
    arguments: dict[str, Any] | None = None
    num_nodes: int | None = None
    num_proc_per_node: int | None = None
    resources_per_node: dict[str, Any] | None = None
    image: str | None = None
    packages_to_install: list[str] | None = None
    env: Mapping[str, str | SecretRef] | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"TRLConfig method {redact(self.method)} is unknown{_suggest(self.method, METHODS)}")
        settings = self._list_settings()
        for name, value in settings.items():
            if type(value).__name__ == "PipelineParameterChannel":
                raise ValueError(f"TRLConfig {name}: a parameter of a KFP pipeline is no setting; give a fixed value")
        texts = {name: value for name, value in settings.items() if not validation.is_placeholder(value)}
        try:
            func_args.coerce(texts, self._list_types(), type(self).__name__)
        except ValueError as error:
            raise ValueError(str(error).replace("func_args.", "TRLConfig ", 1)) from None
        validation.check_mapping("arguments", self.arguments, "{'warmup_ratio': 0.1}")
        func_args.check_json(self.arguments, "arguments")
        for name in ("num_nodes", "num_proc_per_node"):
            validation.check_count(name, getattr(self, name))
        resources.check_resources("resources_per_node", self.resources_per_node)
        validation.check_image("image", self.image)
        validation.check_packages("packages_to_install", self.packages_to_install)
        validation.check_env("env", self.env)
        self._check_names({*settings, *(["reward_funcs"] if self.reward_funcs else [])})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TRLConfig:
        """Build the settings from plain data: see `Recipe`."""
        values = validation.known_fields(cls, data)
        if isinstance(values.get("env"), Mapping):
            values["env"] = {name: parse_secret(value) for name, value in values["env"].items()}
        return cls(**values)

    def to_trainer(self, sources: Mapping[str, str]) -> dict[str, Any]:
        """Return the trainer of a request: the function of `trl_program` with these settings."""
        rewards = self.reward_funcs or []
        # TRL calls them with arguments of its own.
        unset = func_args.PartialArgs()
        codes = [serializer.package(each, unset) for each in rewards if not isinstance(each, str) or ":" in each]
        functions = {
            "rewards": codes,
            "dataset": None if self.dataset is None else serializer.package(self.dataset),
        }
        names = [each for each in rewards if isinstance(each, str) and ":" not in each]
        args = {
            "method": self.method,
            **self._list_settings(),
            **({"reward_funcs": names} if names else {}),
            "functions": {name: value for name, value in functions.items() if value},
            "sources": dict(sources),
        }
        text = _read_program()
        code = {
            "kind": "source",
            "text": text,
            "entry": _ENTRY,
            "args": {name: value for name, value in args.items() if value != {}},
            "types": self._list_types(),
            "digest": load_function.digest("source", text, _ENTRY),
            "origin": f"{_PROGRAM.name}:1",
        }
        own = {name: value for name in self.trainer_fields if (value := getattr(self, name))}
        if self.env:
            own["env"] = {n: asdict(v) if isinstance(v, SecretRef) else v for n, v in self.env.items()}
        return {"kind": "custom", "code": code, "packages": list(self.packages_to_install or ()), **own}

    def _list_settings(self) -> dict[str, Any]:
        """Return the fields of TRL that have a value."""
        left_out = {*self.trainer_fields, "method", "dataset", "reward_funcs", "packages_to_install"}
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def _list_types(cls) -> dict[str, str]:
        types = {each.name: str(each.type) for each in fields(cls) if each.name not in cls.trainer_fields}
        return {name: declared for name, declared in types.items() if func_args.read_type(declared)[0] is not None}

    def _check_names(self, settings: set[str]) -> None:
        """Check that TRL knows each name: by its own classes where it is installed, else by what the fields say."""
        for name in sorted(settings):
            if self.method not in _OF_METHODS.get(name, METHODS):
                those = ", ".join(_OF_METHODS[name])
                raise ValueError(f"TRLConfig {name} is no argument of {self.method}, only of {those}; remove it")
        own = [each.name for each in fields(self)]
        known = _list_arguments(self.method)
        for name in self.arguments or ():
            if name in _RESERVED:
                raise ValueError(f"TRLConfig arguments: {name} is set by the job; remove it")
            if name in own:
                raise ValueError(f"TRLConfig arguments: {name} is a field; give TRLConfig({name}=…)")
            if known and name not in known:
                raise ValueError(
                    f"TRLConfig arguments: {redact(name)} is no argument of {self.method} in the TRL that is installed"
                    f"{_suggest(name, [*known])}"
                )


@cache
def _read_program() -> str:
    return _PROGRAM.read_text(encoding="utf-8")


@cache
def _list_arguments(method: str) -> frozenset[str]:
    """Return the arguments of a script, read from the sources of TRL without importing it; none if it is missing."""
    names: set[str] = set()
    for package, files in _SOURCES.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None or not spec.submodule_search_locations:
            return frozenset()
        for file in files:
            path = Path(spec.submodule_search_locations[0], file.format(method))
            if not path.is_file():
                return frozenset()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                    names.update(each.id for each in targets if isinstance(each, ast.Name))
    return frozenset(names)


def _suggest(name: object, known: list[str] | tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(str(name)[:60], known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(sorted(known)[:20])}"
