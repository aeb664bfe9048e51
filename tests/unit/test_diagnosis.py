"""Facts about a failed job in, its diagnosis out."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model.jobs import AttemptMemory, Category, TrainJobRef


def report_of_torchrun(rank, code):
    return [
        "Root Cause (first observed failure):",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 4242) ",
        "  error_file: <N/A>",
        "====",
    ]


def test_an_exception_is_a_user_error_and_not_retryable():
    step = StepFacts("node-0", 1, "host", "ValueError", "bad shape\nmore", "Traceback …", ["a", "b"])
    diagnosis = diagnose(Facts(steps=[step]))

    assert (diagnosis.category, diagnosis.reason) == (Category.USER_CODE, "ValueError: bad shape")
    assert (diagnosis.step, diagnosis.node, diagnosis.exit_code) == ("node-0", "host", 1)
    assert (diagnosis.traceback, diagnosis.log_tail, diagnosis.retryable) == ("Traceback …", ("a", "b"), False)


def test_the_reason_of_an_error_in_a_worker_of_a_data_loader_is_the_workers_own():
    original = "Original Traceback (most recent call last):\n  File …\nKeyError: 'row 7'\n"
    worker = StepFacts("node-0", 1, error_type="KeyError", error_message=f"Caught KeyError in worker 0.\n{original}")
    assert diagnose(Facts(steps=[worker])).reason == "KeyError: 'row 7'"


def test_a_reason_has_no_control_characters():
    colored = StepFacts("node-0", 1, error_type="ValueError", error_message="\x1b[31mbad\x1b[0m\tshape \0")
    assert diagnose(Facts(steps=[colored])).reason == r"ValueError: \x1b[31mbad\x1b[0m\tshape \x00"

    last_line = StepFacts("dataset-initializer", 1, log_tail=["disk \0 full"])
    assert diagnose(Facts(steps=[last_line])).reason == r"disk \x00 full"


def test_the_reason_of_an_exception_without_a_message_is_its_name():
    assert diagnose(Facts(steps=[StepFacts("node-0", 1, error_type="AssertionError")])).reason == "AssertionError"


def test_a_diagnosis_has_the_last_twenty_lines_of_a_log():
    lines = [f"line {number}" for number in range(50)]
    assert diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=lines)])).log_tail == tuple(lines[30:])


def test_the_step_with_an_exception_is_the_cause():
    peers = [StepFacts("node-1", 1), StepFacts("node-0", 1, error_type="KeyError", error_message="'x'")]

    assert diagnose(Facts(steps=peers)).step == "node-0"


@pytest.mark.parametrize(
    ("peer", "cause"),
    [
        (StepFacts("node-1", -9, out_of_memory=True), "node-1"),
        (StepFacts("node-1", 1, error_type="ValueError"), "node-1"),
        (StepFacts("node-1", 7), "node-1"),
        (StepFacts("node-1", -9), "node-0"),
    ],
    ids=["out of memory", "exception", "exit code", "killed"],
)
def test_a_step_that_saved_and_ended_for_its_peer_is_not_the_cause(peer, cause):
    stopped = StepFacts("node-0", 143, error_type="trainjob.Stopped", error_message="rank 1 was started again")
    assert diagnose(Facts(steps=[stopped, peer])).step == cause


def test_checkpoints_whose_disk_is_full_are_no_mistake_of_the_code_and_a_retry_may_help():
    step = StepFacts("node-0", 1, error_type="trainjob.StorageError", error_message="step 4 was not saved: no space")
    diagnosis = diagnose(Facts(steps=[step]))
    assert (diagnosis.category, diagnosis.retryable) == ("Infrastructure", True)
    assert diagnosis.reason == "step 4 was not saved: no space"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (9, "it was killed by SIGKILL, not by this backend (often for lack of memory)"),
        (15, "it was killed by SIGTERM, not by this backend"),
    ],
)
def test_a_killed_step_is_retryable(number, reason):
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", -number)]))

    assert (diagnosis.category, diagnosis.reason, diagnosis.retryable) == (Category.INFRASTRUCTURE, reason, True)


def test_a_worker_that_torchrun_reports_as_killed_is_retryable():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=report_of_torchrun(0, -9))]))
    assert (diagnosis.category, diagnosis.exit_code) == (Category.INFRASTRUCTURE, -9)


@pytest.mark.parametrize(
    "step", [StepFacts("node-0", 1, error_type="MemoryError"), StepFacts("node-0", -9, out_of_memory=True)]
)
def test_lack_of_memory_has_its_own_category(step):
    assert diagnose(Facts(steps=[step])).category is Category.OUT_OF_MEMORY


MEMORY = AttemptMemory(amount="8Gi", asked="8Gi", next="12Gi")


@pytest.mark.parametrize(
    "step", [StepFacts("node-0", 1, error_type="MemoryError"), StepFacts("node-0", -9, out_of_memory=True)]
)
def test_lack_of_memory_is_retryable_if_the_next_attempt_asks_for_more(step):
    diagnosis = diagnose(Facts(steps=[step], memory=MEMORY))
    assert diagnosis.retryable
    assert diagnosis.reason.endswith("; 8Gi was not enough, the next attempt asks for 12Gi")


def test_lack_of_memory_at_the_limit_is_not_retryable():
    memory = AttemptMemory(amount="32Gi", asked="8Gi")
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, error_type="MemoryError")], memory=memory))
    assert not diagnosis.retryable
    assert "; 32Gi, the limit of MoreMemory, was not enough: raise it" in diagnosis.reason


def test_lack_of_memory_of_a_gpu_is_not_retryable_with_more_memory():
    step = StepFacts("node-0", 1, error_type="torch.OutOfMemoryError", error_message="CUDA out of memory")
    assert diagnose(Facts(steps=[step], memory=MEMORY)) == diagnose(Facts(steps=[step]))


def test_a_step_that_the_system_killed_for_lack_of_memory_is_the_cause_of_the_errors_of_its_peers():
    peer = StepFacts("node-0", 1, error_type="torch.distributed.DistBackendError", error_message="closed by peer")
    diagnosis = diagnose(Facts(steps=[peer, StepFacts("node-1", 137, out_of_memory=True)]))
    assert (diagnosis.category, diagnosis.step) == (Category.OUT_OF_MEMORY, "node-1")


LOADER = "DataLoader worker (pid 4242) is killed by signal: Killed. "
LOADER_ENDED = "DataLoader worker (pid(s) 4242) exited unexpectedly"
COMMAND = "Command '['python', '-c', 'import …']' died with <Signals.SIGKILL: 9>."
POOL = "A process in the process pool was terminated abruptly while the future was running or pending."


@pytest.mark.parametrize(
    ("kind", "message", "traceback"),
    [
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 1.00 EiB for an array", ""),
        ("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.", ""),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:83] DefaultCPUAllocator: can't allocate memory: 12 bytes", ""),
        ("RuntimeError", LOADER, ""),
        (
            "RuntimeError",
            LOADER_ENDED,
            f"RuntimeError: {LOADER}\nThe above exception was …\nRuntimeError: {LOADER_ENDED}",
        ),
        ("concurrent.futures.process.BrokenProcessPool", POOL, ""),
        ("subprocess.CalledProcessError", COMMAND, ""),
        (
            "subprocess.CalledProcessError",
            "Command '['python', '-c', 'import […]",
            f"raise Called…\nCalled…: {COMMAND}",
        ),
    ],
)
def test_an_exception_about_memory_is_no_mistake_in_the_code(kind, message, traceback):
    step = StepFacts("node-0", 1, error_type=kind, error_message=message, traceback=traceback)
    assert diagnose(Facts(steps=[step])).category is Category.OUT_OF_MEMORY


@pytest.mark.parametrize(("kills", "category"), [(0, Category.USER_CODE), (2, Category.OUT_OF_MEMORY)])
def test_a_command_that_fails_is_out_of_memory_where_the_kernel_has_killed_for_lack_of_it(kills, category):
    error = {"type": "subprocess.CalledProcessError", "message": "Command 'x' returned non-zero exit status 1."}
    step = StepFacts.from_record("node-0", {"error": error, "oom_kills": kills}, exit_code=1)
    assert diagnose(Facts(steps=[step])).category is category


@pytest.mark.parametrize(
    "message",
    [
        "DataLoader worker (pid 7) is killed by signal: Segmentation fault. ",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers …",
        f"{LOADER_ENDED} with exit code 3. Details are lost due to multiprocessing.",
        "the server answered RESOURCE_EXHAUSTED",
        "Command 'make' returned non-zero exit status 1.",
        "Command 'make' died with <Signals.SIGSEGV: 11>.",
    ],
)
def test_another_exception_of_the_same_kind_remains_a_mistake_in_the_code(message):
    step = StepFacts("node-0", 1, error_type="RuntimeError", error_message=message)
    assert diagnose(Facts(steps=[step])).category is Category.USER_CODE


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_in_native_code_is_a_user_error_and_not_retryable(name):
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", -signal.Signals[name])]))

    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert f"crashed with {name}" in diagnosis.reason


def test_a_worker_that_torchrun_reports_as_crashed_is_a_user_error():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=report_of_torchrun(1, -11))]))
    assert (diagnosis.category, diagnosis.exit_code) == (Category.USER_CODE, -11)
    assert diagnosis.reason == "rank 1 crashed with SIGSEGV (a memory fault in native code)"


@pytest.mark.parametrize(("code", "means"), [(126, "cannot be executed"), (127, "was not found")])
def test_exit_codes_of_a_shell_are_explained(code, means):
    assert means in diagnose(Facts(steps=[StepFacts("node-0", code)])).reason


def test_the_exit_code_of_the_function_replaces_that_of_torchrun():
    left = StepFacts("node-0", 1, error_type="SystemExit", error_message="3")
    assert diagnose(Facts(steps=[left])).exit_code == 3


def test_the_message_of_a_step_follows_its_exit_code():
    step = StepFacts("node-0", 2, message="usage: train [-h]")

    assert diagnose(Facts(steps=[step])).reason == "it ended with exit code 2: usage: train [-h]"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (StepFacts("node-0", 2), "it ended with exit code 2"),
        (StepFacts("node-0", 1, error_type="SystemExit", error_message="2"), "SystemExit: 2"),
    ],
    ids=["program", "function"],
)
def test_the_reason_of_an_exit_has_the_last_line_of_the_training(step, reason):
    usage = "train.py: error: the following arguments are required: --epochs"
    ours = [
        "trainjob: resumed from step 9, saved by TrainJob a",
        "trainjob: checkpoint of step 10 is complete (0.02 s, 1.0 MB)",
    ]
    tail = ["usage: train.py --epochs N", f"[rank 0] {usage}", *ours, "", '[trainjob:progress] {"step": 1}']
    assert diagnose(Facts(steps=[step])).reason == reason
    assert diagnose(Facts(steps=[replace(step, log_tail=tail)])).reason == f"{reason}; its last line: [rank 0] {usage}"
    (long,) = diagnose(Facts(steps=[replace(step, log_tail=["x" * 10**6])])).reason.splitlines()
    assert len(long) < 300


def test_the_reason_of_an_exit_with_a_text_is_that_text():
    step = StepFacts("node-0", 1, error_type="SystemExit", error_message="no lr", log_tail=["epoch 1"])
    assert diagnose(Facts(steps=[step])).reason == "SystemExit: no lr"


def test_without_an_exit_code_the_message_is_the_reason():
    assert diagnose(Facts(steps=[StepFacts("node-0", message="it was full")])).reason == "it was full"


@pytest.mark.parametrize(
    ("step", "category"),
    [
        (StepFacts("node-1", -15, preempted="a job of higher priority needs its place"), Category.PREEMPTED),
        (StepFacts("node-1", node_lost="its machine is gone"), Category.NODE_LOST),
    ],
)
def test_the_step_that_lost_its_machine_is_the_cause_of_its_peers_exceptions(step, category):
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, error_type="DistBackendError"), step]))

    assert (diagnosis.category, diagnosis.step, diagnosis.retryable) == (category, "node-1", True)


@pytest.mark.parametrize(
    ("facts", "category", "retryable"),
    [
        (Facts(rejected="denied"), Category.REJECTED, False),
        (Facts(unschedulable="no machine"), Category.SCHEDULING, True),
        (Facts(image_error="not found"), Category.IMAGE, False),
        (Facts(image_error="registry is away", transient=True), Category.IMAGE, True),
        (Facts(infrastructure_error="no volume"), Category.INFRASTRUCTURE, True),
        (Facts(deadline_error="ran too long"), Category.DEADLINE, False),
    ],
)
def test_each_obstacle_has_its_category(facts, category, retryable):
    assert (diagnose(facts).category, diagnose(facts).retryable) == (category, retryable)


def test_an_obstacle_names_the_affected_step():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-3", node="gpu-7")], unschedulable="no machine"))

    assert (diagnosis.step, diagnosis.node, diagnosis.reason) == ("node-3", "gpu-7", "no machine")


@pytest.mark.parametrize(
    ("step", "code", "helps"), [("dataset-initializer", 75, True), ("dataset-initializer", 1, False)]
)
def test_the_exit_code_of_an_initializer_decides_whether_it_is_retryable(step, code, helps):
    diagnosis = diagnose(Facts(steps=[StepFacts(step, code, log_tail=["dataset: the storage wants fewer requests"])]))

    assert (diagnosis.category, diagnosis.retryable) == (Category.INITIALIZER, helps)


def test_the_retry_exit_code_of_an_initializer_has_no_meaning_for_a_node():
    assert not diagnose(Facts(steps=[StepFacts("node-0", 75)])).retryable


def test_the_reason_of_an_initializer_is_its_last_log_line():
    step = StepFacts("dataset-initializer", 1, log_tail=["fetching", "dataset: /x does not exist", ""])
    diagnosis = diagnose(Facts(steps=[step]))

    assert (diagnosis.category, diagnosis.reason) == (Category.INITIALIZER, "dataset: /x does not exist")


def test_a_cancelled_job_is_deleted_whatever_its_steps_report():
    facts = Facts(steps=[StepFacts("node-0", -15)], cancelled=True)

    assert diagnose(facts).category is Category.DELETED


def test_the_reason_of_a_passed_deadline_names_its_seconds():
    diagnosis = diagnose(Facts(deadline_seconds=60))

    assert diagnosis.category is Category.DEADLINE
    assert "60 s" in diagnosis.reason


def test_an_environment_that_could_not_be_built_is_an_image_error():
    assert diagnose(Facts(image_error="installing x failed")).category is Category.IMAGE


def test_the_message_of_the_system_is_the_last_resort():
    diagnosis = diagnose(Facts(message="jobset failed"))

    assert (diagnosis.category, diagnosis.reason, diagnosis.retryable) == (
        Category.INFRASTRUCTURE,
        "it failed: jobset failed",
        True,
    )


def test_without_facts_the_reason_refers_to_the_log():
    diagnosis = diagnose(Facts())

    assert diagnosis.category is Category.INFRASTRUCTURE
    assert diagnosis.reason == "it failed without a reported reason; see its log"


def test_the_log_tail_ends_before_the_report_of_torchrun():
    told = [
        "E1121 17:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:999] failed (exitcode: 3) local_rank: 0",
        *(f"  torchrun line {number}" for number in range(40)),
    ]
    step = StepFacts("node-0", 1, log_tail=["epoch 1", "the last of mine", *told])

    assert diagnose(Facts(steps=[step])).log_tail == ("epoch 1", "the last of mine")


def test_the_outcome_of_a_failed_job_has_the_last_progress_in_its_log():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=['[trainjob:progress] {"checkpoint": 4}'])]))
    outcome = build_failed_outcome(TrainJobRef("local", "/home", "job", "uid"), diagnosis)

    assert (outcome.status, outcome.diagnosis, outcome.checkpoint) == ("Failed", diagnosis, 4)
