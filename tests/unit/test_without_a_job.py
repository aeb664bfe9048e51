"""The file of a training without a job: it runs as often as one likes, and touches nothing of a machine or of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from trainer_core import checkpoint_path, checkpoints, dataset_path, model_path, output_path, progress
from trainer_core.node import env

ROOT = Path(__file__).parents[2]
TRAINING = """
import json, sys
from trainer_core import checkpoints, output_path, progress
store = checkpoints(*sys.argv[1:])
begun = last.step if (last := store.latest()) else 0
for step in range(begun + 1, 4):
    progress(step=step, total=3, metrics={"loss": 1 / step})
    if store.due(step) or step == 3:
        with store.save(step) as folder:
            (folder / f"rank-{store.rank}").touch()
print(json.dumps({"trained": 3 - begun, "rank": store.rank, "of": store.world_size, "out": str(output_path())}))
"""


@pytest.fixture(autouse=True)
def no_job(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TRAINJOB_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def terminal():
    master, slave = os.openpty()
    yield slave
    os.close(slave)
    os.close(master)


def run(*arguments, stdin=subprocess.DEVNULL, **variables):
    """Run the training in the working directory; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_training_trains_each_time_and_leaves_its_output_only(tmp_path):
    expected = {"trained": 3, "rank": 0, "of": 1, "out": str(tmp_path / "output")}

    assert [[json.loads(line) for line in run()] for _ in range(2)] == [[expected], [expected]]
    assert list(tmp_path.iterdir()) == [tmp_path / "output"]


def test_a_rank_of_torchrun_needs_no_other_one():
    (line,) = run(RANK="1", WORLD_SIZE="2")

    assert json.loads(line)["rank"] == 1
    assert json.loads(line)["of"] == 2


def test_with_a_folder_the_next_run_continues(tmp_path):
    run("kept")

    assert json.loads(run("kept")[-1])["trained"] == 0
    assert (tmp_path / "kept" / "step-000000000003" / "rank-0").exists()


def test_in_a_terminal_of_a_jobs_container_the_job_is_left_alone(tmp_path, terminal):
    log = tmp_path / "log"
    log.write_text('{"result": 1}')
    of_job = {"TRAINJOB_NAME": "job", "TRAINJOB_CHECKPOINT_PATH": str(tmp_path / "of-job")}
    of_job |= {"TRAINJOB_TERMINATION_LOG": str(log), "TRAINJOB_OUTPUT_PATH": str(tmp_path / "of-job")}
    of_job["TRAINJOB_OBJECTIVE"] = json.dumps({"metric": "loss", "best": "min", "at": [1]})

    (line,) = run(stdin=terminal, **of_job)

    assert json.loads(line)["out"] == str(tmp_path / "output")
    assert not (tmp_path / "of-job").exists()
    assert log.read_text() == '{"result": 1}'


def test_the_program_of_an_image_is_the_job(tmp_path):
    folders = {"TRAINJOB_OUTPUT_PATH": str(tmp_path / "out"), "TRAINJOB_TERMINATION_LOG": str(tmp_path / "log")}
    lines = run(TRAINJOB_NAME="job", **folders)

    assert lines[1].startswith("[trainjob:progress] ")
    assert (tmp_path / "out" / "checkpoints" / "step-000000000003").exists()


@pytest.mark.parametrize("nodes", ["PET_NNODES", "JAX_NUM_PROCESSES", "DMLC_NUM_WORKER"])
def test_a_trainjob_that_another_tool_created_is_a_job(nodes, tmp_path, terminal):
    of_trainer = {nodes: "1", "JOB_COMPLETION_INDEX": "0", "TRAINJOB_OUTPUT_PATH": str(tmp_path / "out")}

    assert run(**of_trainer)[1].startswith("[trainjob:progress] ")
    assert len(run(stdin=terminal, **of_trainer)) == 1


@pytest.mark.parametrize("of_others", [{"PET_NNODES": "1", "TORCHELASTIC_RUN_ID": "a"}, {"JOB_COMPLETION_INDEX": "0"}])
def test_torchrun_by_hand_and_a_job_of_kubernetes_are_no_job(of_others):
    assert len(run(**of_others)) == 1


def test_a_packaged_function_is_the_job_in_a_terminal_too(tmp_path, terminal):
    lines = run(stdin=terminal, TRAINJOB_PAYLOAD="/p", TRAINJOB_OUTPUT_PATH=str(tmp_path / "out"))

    assert lines[1].startswith("[trainjob:progress] ")


@given(steps=st.lists(st.integers(0, 9), max_size=8), background=st.booleans())
def test_nothing_is_due_kept_or_loaded_whatever_is_saved(steps, background):
    store, folders = checkpoints(), []
    for step in steps:
        assert not store.due(step)
        with store.save(step, {"loss": 1}, background=background) as folder:
            (folder / "weights").touch()
        store.save_in_background(step, lambda path: folders.append(path / "weights"))
        folders.append(folder)
        assert (store.latest(), store.all(), checkpoint_path(), store.stopping) == (None, [], None, False)
    store.flush()

    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(("find", "name"), [(dataset_path, env.DATASET_PATH), (model_path, env.MODEL_PATH)])
def test_data_is_where_a_variable_says_and_never_in_the_workspace_of_the_machine(find, name, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"set {name} to a folder"):
        find()

    monkeypatch.setenv(name, "data")
    assert find() == Path("data")


@pytest.mark.parametrize(("find", "name"), [(dataset_path, env.DATASET_PATH), (model_path, env.MODEL_PATH)])
def test_the_data_of_a_trainjob_of_another_tool_is_found_where_it_exists(find, name, monkeypatch, tmp_path):
    monkeypatch.setitem(env.DEFAULTS, name, str(tmp_path / "data"))
    monkeypatch.setenv("PET_NNODES", "1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    with pytest.raises(FileNotFoundError, match=f"set {name} to a folder"):
        find()

    (tmp_path / "data").mkdir()
    assert find() == tmp_path / "data"
    monkeypatch.delenv("JOB_COMPLETION_INDEX")
    with pytest.raises(FileNotFoundError, match=f"set {name} to a folder"):
        find()


def test_progress_prints_nothing(capsys):
    progress(step=1, total=1, metrics={"loss": 1})

    assert capsys.readouterr() == ("", "")


def test_the_output_folder_can_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv(env.OUTPUT_PATH, "results")

    assert output_path() == tmp_path / "results"
