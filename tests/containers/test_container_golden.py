"""The bodies of create calls for some requests, compared with golden files.

After an intended change, write the files again and review them like code::

    PYTHONPATH=. python tests/containers/test_container_golden.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from container_jobs import build_job, build_plan, build_request

from trainer_core.backends.container import plan
from trainer_core.backends.container.plan import CreateInputs
from trainer_core.model.request import TrainJobRequest
from trainer_core.packaging import argv_payload

GOLDEN = Path(__file__).with_name("golden")
TORCH = {"runtime": {"name": "torch-distributed"}}
HF = {"storage_uri": "hf://owner/data", "ignore_patterns": ["*.bin"]}
EXAMPLES = {
    "function": lambda: build_request(),
    "torch-on-two-nodes": lambda: build_request(
        **TORCH,
        trainer={"num_nodes": 2, "resources_per_node": {"cpu": 4, "memory": "16Gi", "gpu": 2}, "env": {"LR": "0.1"}},
        active_deadline_seconds=3600,
    ),
    "initializers": lambda: build_request(
        initializer={"dataset": HF, "model": {"storage_uri": "s3://bucket/model", "env": {"REGION": "eu-west-1"}}}
    ),
    "local-data": lambda: build_request(initializer={"dataset": {"storage_uri": "file:///data/digits"}}),
    "initialize": lambda: TrainJobRequest.parse({"name": "digits", "initializer": {"dataset": HF}}),
    "container": lambda: TrainJobRequest.parse(
        {"name": "digits", "trainer": {"kind": "container", "image": "train:1", "command": ["train"], "args": ["-v"]}}
    ),
}


def render_bodies(request: TrainJobRequest) -> str:
    """Return the bodies of all containers, without the code in their arguments."""
    job = build_job(request)
    inputs = CreateInputs("data-of-the-job", {"dataset": "/home/me/copy"}, {}, "trainjob-cache")
    bodies = [plan.build_create_request(job, step, inputs) for step in build_plan(request)["steps"] if "image" in step]
    for each in bodies:
        each["Entrypoint"] = [_shorten(word) for word in each.get("Entrypoint", ())]
    return yaml.safe_dump(bodies, sort_keys=False, width=110)


def _shorten(word: str) -> str:
    if word == argv_payload.UNPACKER:
        return "<the unpacker>"
    return "<the function>" if len(word) > 1000 else word


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_create_calls_match_the_golden_file(name):
    request = EXAMPLES[name]()
    assert render_bodies(request) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_an_example():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(EXAMPLES)


if __name__ == "__main__":
    for example, build in EXAMPLES.items():
        (GOLDEN / f"{example}.yaml").write_text(render_bodies(build()), encoding="utf-8")
