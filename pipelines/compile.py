"""Compile every component and example pipeline to YAML, the same from the same sources: ``make compile``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPONENTS = (
    *("best_of", "delete", "evaluate_gate", "initialize_dataset", "initialize_model", "look"),
    *("promote", "resume", "search", "submit", "suspend", "train", "wait"),
)
#: Components whose outputs depend on their inputs alone: KFP may take them from its cache.
CACHEABLE = ("best_of", "evaluate_gate", "initialize_dataset", "initialize_model", "wait")
PIPELINES = ("finetune_llm", "retrain_digits", "retrain_scheduled", "sweep", "tune_forecast")


def compile_all(root: Path) -> list[Path]:
    """Compile into the folders of a checkout, and return the files written.

    Args:
        root: Where `kfp_components/components` and `pipelines` lie, or are to be made.
    """
    # Imported when the image is known: components take it when they are defined.
    from kfp import compiler

    sys.path[:0] = [str(ROOT / "pipelines")]
    written = []
    for folder, module, name in _sources():
        target = root / folder / f"{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        definition = getattr(importlib.import_module(module), name)
        compiler.Compiler().compile(definition, str(target))
        if name in COMPONENTS and name not in CACHEABLE:
            _switch_caching_off(target)
        written.append(target)
    return written


def _switch_caching_off(path: Path) -> None:
    """Switch caching off for a component that is run directly as a pipeline.

    Where the component is loaded into another pipeline, KFP ignores this; there the input `run_id` does the same.
    """
    text = path.read_text(encoding="utf-8")
    before, found, after = text.partition("cachingOptions:\n          enableCache: true\n")
    if not found:
        raise ValueError(f"{path}: no caching options where the KFP compiler of 2.17 writes them")
    path.write_text(f"{before}cachingOptions: {{}}\n{after}", encoding="utf-8")


def _sources() -> list[tuple[str, str, str]]:
    components = [("kfp_components/components", f"kfp_components.{name}", name) for name in COMPONENTS]
    return components + [("pipelines", name, name) for name in PIPELINES]


def main() -> None:
    """Compile into this checkout, or for an image of one's own into another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="image of the components in your registry, as name@sha256:… or name:version")
    parser.add_argument("--output", type=Path, default=ROOT, help="folder to write into (default: this checkout)")
    arguments = parser.parse_args()
    if arguments.image:
        os.environ["TRAINJOB_KFP_IMAGE"] = arguments.image
    for path in compile_all(arguments.output):
        print(path)


if __name__ == "__main__":
    main()
