#!/usr/bin/env python
"""What a job costs over the plain script of TRL: SFT of a tiny model with two processes.

    benchmarks/trl_cost.py [STEPS]

Yardstick: the processor time of a node with the program of `TRLConfig`, checkpoints of its own option and reports of
progress included, is at most 5 % above that of ``torchrun -m trl.scripts.sft``. Each runs three times; the less counts.

The plain script can hang at its end: torch frees its process group of gloo with the lock of Python, for which a thread
of gloo waits. Such a run is killed and repeated. The program of `TRLConfig` keeps the group until the process ends.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from trainer_core import TRLConfig
from trainer_core.node import env
from trainer_core.packaging import serializer

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
SCENE = ROOT / "tests" / "language_models" / "trl_scene.py"
STEPS = 200
LIMIT = 1.05
#: Seconds after which a run has hung.
PATIENCE = 300


def measure(command: list[str], variables: dict[str, str], folder: Path) -> float:
    """Return the processor time of a command and its children, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w+", encoding="utf-8") as log:
        child = subprocess.Popen(command, env={**environ, **variables}, cwd=folder, stdout=log, stderr=log)
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.terminate()  # torchrun kills its processes, after 30 s also those that do not end.
            child.wait()
            print(f"hung for {PATIENCE} s, and is repeated: {' '.join(command[:6])}", flush=True)
            return measure(command, variables, folder)
    if code:
        raise RuntimeError((folder / "log").read_text(encoding="utf-8"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print both times and their ratio; return 1 if the ratio is above the limit."""
    if not PYTHON.exists():
        print("TRL is not installed: make install-trl")
        return 0
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure([str(PYTHON), str(SCENE), "make", name, "{}"], {}, folder)
        settings = {"max_steps": steps, "per_device_train_batch_size": 2, "logging_steps": 10, "seed": 7}
        sources = {"model_name_or_path": f"{name}/model", "dataset_name": f"{name}/sft"}
        plain = {**settings, **sources, "output_dir": f"{name}/plain", "report_to": "none", "use_cpu": True}
        words = [word for key, value in {**plain, "save_steps": 50}.items() for word in (f"--{key}", str(value))]
        torchrun = [str(PYTHON), "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "trl.scripts.sft"]
        config = TRLConfig(method="sft", **settings, **sources)  # type: ignore[arg-type]  # Of several types.
        payload = folder / "payload.json"
        payload.write_text(serializer.payload(config.to_trainer({})["code"]))
        bootstrap = str(serializer.ship(folder / "shipped"))
        times: dict[str, list[float]] = {"plain": [], "job": []}
        for turn in ("0", "1", "2"):
            node = {
                env.PAYLOAD: str(payload),
                env.TERMINATION_LOG: f"{name}/termination-{turn}",
                env.OUTPUT_PATH: f"{name}/output-{turn}",
                env.CHECKPOINT_PATH: f"{name}/checkpoints-{turn}/train/g-0",
                env.CHECKPOINTS: json.dumps({"every_steps": 50, "grace": 30}),
                "PET_NPROC_PER_NODE": "2",
            }
            times["plain"].append(measure([*torchrun, *words], {}, folder))
            times["job"].append(measure([str(PYTHON), bootstrap, env.TORCHRUN], node, folder))
        ratio = min(times["job"]) / min(times["plain"])
        print(f"plain {times['plain']} s, job {times['job']} s of processor time: ratio {ratio:.3f}, limit {LIMIT}")
        return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
