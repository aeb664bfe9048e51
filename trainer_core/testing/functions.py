"""Training functions of the contract. Each travels as its source, so that it imports what it needs itself."""

# ruff: noqa: D103 -- each does what its name says

from __future__ import annotations

__all__ = [
    "exits",
    "fails",
    "goes_on",
    "prints",
    "reads",
    "reports",
    "returns",
    "returns_an_object",
    "returns_its_rank",
    "returns_setting",
    "writes_text",
]


def returns(value=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 -- any value, as it was given
    return value


def returns_setting(name: str) -> object:
    import os

    return os.environ.get(name)


def returns_an_object() -> object:
    return object()


def returns_its_rank() -> object:
    import os

    rank = int(os.environ["RANK"])
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}")
    return {"rank": rank}


def prints(lines: int) -> None:
    for number in range(lines):
        print(f"line {number}")


def writes_text(text: str) -> None:
    import sys

    print("to stderr", file=sys.stderr, flush=True)
    sys.stdout.write(text)


def reports(steps: int, lines: int = 0) -> object:
    from trainer_core import progress

    for step in range(steps):
        progress(step=step + 1, total=steps, metrics={"loss": 1 / (step + 1)})
    for number in range(lines):
        print(f"line {number}, which is about something else")
    return {"metrics": {"accuracy": 0.75}, "artifacts": {"model": "file:///models/digits"}}


def reads(role: str) -> object:
    from trainer_core import dataset_path, model_path

    root = dataset_path() if role == "dataset" else model_path()
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def fails(reason: str) -> None:
    print("before the failure")
    raise KeyError(reason)


def exits(code: int) -> None:
    import sys

    sys.exit(code)


def goes_on() -> None:
    import time

    print("it runs")
    time.sleep(600)
