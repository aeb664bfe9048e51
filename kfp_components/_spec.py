"""The container of every component: one image, one program, one argument.

``{{$}}`` is the only placeholder: the backend leaves Concat, IfPresent and defaults unresolved in places where the
local runner resolves them (kfp.md finding 3). All branching is in our Python, behind the entry point.
"""

import os
import re

from kfp import dsl

from kfp_components._entry import TARGETS

__all__ = ["DEFAULT_IMAGE", "IMAGE_VARIABLE", "PASSTHROUGHS", "container_spec", "image"]

#: Built from `Dockerfile` beside this file; of the same version as this package.
DEFAULT_IMAGE = "trainjob-workflows/kfp-components:0.1.0"
#: Names the image in your own registry, when components are compiled: ``registry/name@sha256:…``.
IMAGE_VARIABLE = "TRAINJOB_KFP_IMAGE"

#: What KFP passes to `train` of what is set on its task. The step's own pod gets what it may need too: its
#: environment and volumes. It must not take the GPUs, nor stand on their machines.
PASSTHROUGHS = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field.name in ("ENV", "KUBERNETES_VOLUMES"))
    for field in dsl.TaskConfigField
]

_PINNED = re.compile(r"[^\s@]+(@sha256:[0-9a-f]{64}|:(?!latest$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})")


def image() -> str:
    """Return the image of the components.

    Raises:
        ValueError: It is not pinned: KFP would reuse results of another image that had the same name.
    """
    name = os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    if not _PINNED.fullmatch(name):
        raise ValueError(f"{IMAGE_VARIABLE}: {name!r} is not pinned; write name@sha256:… or name:version, not latest")
    return name


def container_spec(target: str) -> dsl.ContainerSpec:
    """Return the container that runs one target of the entry point.

    Raises:
        ValueError: No such target.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; known are {', '.join(sorted(TARGETS))}")
    # No shell in between, so that SIGTERM reaches the program.
    return dsl.ContainerSpec(
        image=image(),
        command=["python3", "-m", "kfp_components._entry"],
        args=[target, dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
