"""Exactly what an engine is sent for a request, as golden files.

After a change that is meant, write them anew and review them like code::

    PYTHONPATH=. python tests/containers/test_container_golden.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from container_jobs import job, plan, request

from trainer_core import shipping
from trainer_core.backends.container import body
from trainer_core.backends.container.body import Places
from trainer_core.request import TrainJobRequest

GOLDEN = Path(__file__).with_name("golden")
TORCH = {"runtime": {"name": "torch-distributed"}}
HF = {"storage_uri": "hf://owner/data", "ignore_patterns": ["*.bin"]}
EXAMPLES = {
    "function": lambda: request(),
    "torch-on-two-nodes": lambda: request(
        **TORCH,
        trainer={"num_nodes": 2, "resources_per_node": {"cpu": 4, "memory": "16Gi", "gpu": 2}, "env": {"LR": "0.1"}},
        active_deadline_seconds=3600,
    ),
    "initializers": lambda: request(
        initializer={"dataset": HF, "model": {"storage_uri": "s3://bucket/model", "env": {"REGION": "eu-west-1"}}}
    ),
    "local-data": lambda: request(initializer={"dataset": {"storage_uri": "file:///data/digits"}}),
    "initialize": lambda: TrainJobRequest.parse({"name": "digits", "initializer": {"dataset": HF}}),
    "container": lambda: TrainJobRequest.parse(
        {"name": "digits", "trainer": {"kind": "container", "image": "train:1", "command": ["train"], "args": ["-v"]}}
    ),
}


def sent(asked: TrainJobRequest) -> str:
    """The bodies of all containers, without the code that travels in them."""
    made = job(asked)
    places = Places("data-of-the-job", {"dataset": "/home/me/copy"}, {}, "trainjob-cache")
    bodies = [body.create(made, step, places) for step in plan(asked)["steps"] if "image" in step]
    for each in bodies:
        each["Entrypoint"] = [_shown(word) for word in each.get("Entrypoint", ())]
    return yaml.safe_dump(bodies, sort_keys=False, width=110)


def _shown(word: str) -> str:
    if word == shipping.LOADER:
        return "<the loader>"
    return "<the function>" if len(word) > 1000 else word


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_engine_is_sent_what_was_reviewed(name):
    asked = EXAMPLES[name]()
    assert sent(asked) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_golden_file_is_of_an_example():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(EXAMPLES)


if __name__ == "__main__":
    for example, asked_for in EXAMPLES.items():
        (GOLDEN / f"{example}.yaml").write_text(sent(asked_for()), encoding="utf-8")
