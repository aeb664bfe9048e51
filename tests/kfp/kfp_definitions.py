"""Training functions for the tests of components and pipelines: no torch, done at once."""


def train_a_little(epochs: int, learning_rate: float, note: str = "", tags: list | None = None):
    from trainer_core import output_path, progress

    progress(step=epochs, total=epochs, metrics={"loss": 0.25})
    print("a line of the log, with python3 in it")
    model = output_path() / "model.txt"
    model.write_text("weights")
    given = {"epochs": epochs, "learning_rate": learning_rate, "note": note, "tags": tags}
    return {"accuracy": 0.9, "given": repr(given), "artifacts": {"model": model.as_uri()}}


def read_the_dataset():
    from trainer_core import dataset_path

    return {"files": {path.name: path.read_text() for path in sorted(dataset_path().iterdir())}}


def read_the_model():
    from trainer_core import model_path

    return {"files": {path.name: path.read_text() for path in sorted(model_path().iterdir())}}


def diverge():
    return {"accuracy": 0.9, "loss": float("nan"), "norm": float("inf")}


def fail_with_markup():
    raise ValueError("<b>no luck</b>")


def save_and_fail_once(marker: str):
    """Save a checkpoint at each of four steps, and fail once before the third."""
    from pathlib import Path

    from trainer_core import checkpoints, progress

    store = checkpoints()
    last = store.latest()
    for step in range(last.step + 1 if last else 1, 5):
        if step == 3 and not Path(marker).exists():
            Path(marker).touch()
            raise RuntimeError("the node is gone")
        progress(step=step, total=4)
        if store.due(step):
            with store.save(step) as folder:
                (folder / "state").write_text(str(step))


def be_killed(marker: str, times: int, with_supervisor: bool = False):
    """Save a checkpoint at each of four steps; be killed before the third, as by a lost node, a number of times."""
    import os
    import signal
    import time
    from pathlib import Path

    from trainer_core import checkpoints

    store = checkpoints()
    last = store.latest()
    with Path(marker).open("a+") as file:
        file.seek(0)
        deaths = len(file.read())
        for step in range(last.step + 1 if last else 1, 5):
            if step == 3 and deaths < times:
                file.write("x")
                file.flush()
                os.kill(os.getppid() if with_supervisor else os.getpid(), signal.SIGKILL)
                time.sleep(600)
            with store.save(step) as folder:
                (folder / "state").write_text(str(step))
    return {"accuracy": 0.8}


def fail_once(marker: str):
    from pathlib import Path

    if not Path(marker).exists():
        Path(marker).touch()
        raise RuntimeError("the first time fails")
    return {"accuracy": 0.8}


def run_for_ever():
    import time

    print("training has begun", flush=True)
    while True:
        time.sleep(0.1)


def return_a_list():
    return [1, 2, 3]


def return_what_json_has_not():
    return {"accuracy": 0.5, "loss": float("nan")}


def name_a_model_elsewhere():
    return {"accuracy": 0.7, "artifacts": {"model": "s3://models/digits"}}


def classify():
    from trainer_core import progress

    for step in range(3):
        # The first step and the last have lines of their own, however soon one comes after the other.
        progress(step=step + 1, total=3, metrics={"loss": 1.0 / (step + 1)})
    return {
        "accuracy": 0.85,
        "confusion_matrix": {"labels": ["<cat>", "dog"], "matrix": [[9, 1], [2, 8]]},
        "roc": {"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1], "thresholds": [float("inf"), 0.5, 0]},
    }


def classify_oddly():
    return {"confusion_matrix": {"labels": ["a", "b"], "matrix": [[1]]}, "roc": {"fpr": [0], "tpr": [0, 1]}}


def train_until(marker: str):
    import time
    from pathlib import Path

    print("training has begun", flush=True)
    while not Path(marker).exists():
        time.sleep(0.1)
    return {"accuracy": 0.7}


def score(rate: float):
    return {"rate": rate, "error": abs(rate - 0.5)}


def return_accuracy(accuracy: float):
    return {"accuracy": accuracy}
