"""Why a job on a cluster cannot start, or fails again and again: said while it counts as live."""

from __future__ import annotations

import pytest
from k8s_objects import IMAGE, LATER, end, ended, error, event, runs, seen, waits

from trainer_core.cluster import events, trouble
from trainer_core.cluster.reasons import GIVE_UP, SOON, WAIT
from trainer_core.outcome import Category

NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "ghcr.io/acme/digits:3": failed to resolve '
    "reference: ghcr.io/acme/digits:3: not found"
)
DENIED = (
    "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope"
)
AWAY = 'failed to do request: Head "https://ghcr.io/v2/": dial tcp 140.82.1.1:443: i/o timeout'
NO_REGISTRY = 'failed to do request: Head "https://localhost:1/v2/": dial tcp [::1]:1: connect: connection refused'
NO_SUCH_HOST = 'failed to do request: Head "https://ghcr.oi/v2/": dial tcp: lookup ghcr.oi: no such host'
LIMITED = "429 Too Many Requests: toomanyrequests: You have reached your unauthenticated pull rate limit"
NO_COMMAND = (
    "failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container "
    'process: exec: "python3": executable file not found in $PATH'
)
OFTEN = {"restarts": 1, "last": end(1, error())}


def _of(*pods, raws=()):
    return trouble.trouble(pods, [events.read(raw) for raw in raws])


def _why(*pods, raws=()):
    """Category and grace of what is wrong."""
    found = _of(*pods, raws=raws)
    return found.diagnosis.category, found.grace


@pytest.mark.parametrize("main", [runs(), waits("ContainerCreating"), waits("PodInitializing"), ended(0)])
def test_nothing_is_wrong_with_a_job_on_its_way(main):
    assert _of(seen(main=main)) is None


# --- images


@pytest.mark.parametrize(
    ("reason", "message", "grace"),
    [
        ("ErrImagePull", NOT_FOUND, GIVE_UP),
        ("ErrImagePull", DENIED, GIVE_UP),
        ("ErrImagePull", "something new", SOON),
        ("ErrImagePull", AWAY, WAIT),
        ("ErrImagePull", NO_REGISTRY, SOON),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {NO_REGISTRY}', SOON),
        ("ErrImagePull", NO_SUCH_HOST, SOON),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"', GIVE_UP),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {NOT_FOUND}', GIVE_UP),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {LIMITED}', WAIT),
        ("InvalidImageName", 'couldn\'t parse image name "A:b:c"', GIVE_UP),
        ("ErrImageNeverPull", "is not present with pull policy of Never", GIVE_UP),
    ],
)
def test_an_image_that_is_not_there_counts_at_once_and_a_registry_that_is_away_does_not(reason, message, grace):
    assert _why(seen(main=waits(reason, message))) == (Category.IMAGE, grace)


def test_an_image_error_names_the_image_and_gives_the_registrys_words():
    diagnosis = _of(seen(main=waits("ErrImagePull", NOT_FOUND))).diagnosis

    assert diagnosis.reason.startswith(f"its image {IMAGE} cannot be pulled: rpc error: code = NotFound")
    assert (diagnosis.step, diagnosis.node, diagnosis.retryable) == ("node-0", "gpu-1", False)


def test_a_retry_can_help_against_a_registry_that_is_away():
    assert _of(seen(main=waits("ErrImagePull", AWAY))).diagnosis.retryable


def test_where_kubelet_only_backs_off_the_registrys_words_are_in_an_event():
    pod = seen(main=waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))
    pulled = event("Failed", f'Failed to pull image "{IMAGE}": {LIMITED}')
    found = _of(pod, raws=[pulled, event("Failed", "Error: ImagePullBackOff")])

    assert LIMITED in found.diagnosis.reason
    assert found.grace == WAIT


def test_an_image_of_a_sidecar_counts_too():
    sidecar = waits("ErrImagePull", NOT_FOUND, "proxy", image="proxy:1")

    assert "proxy:1" in _of(seen(others=[sidecar])).diagnosis.reason


# --- containers that are not started


def test_a_missing_secret_is_given_a_moment_because_ours_comes_after_the_job():
    main = waits("CreateContainerConfigError", 'secret "digits-initializer" not found')

    assert _why(seen(main=main)) == (Category.REJECTED, SOON)
    assert 'secret "digits-initializer" not found' in _of(seen(main=main)).diagnosis.reason


@pytest.mark.parametrize(
    "main",
    [
        waits("RunContainerError", NO_COMMAND),
        waits("CreateContainerError", NO_COMMAND),
        ended(128, message=NO_COMMAND, reason="StartError"),
        waits("CrashLoopBackOff", "back-off", last=end(128, NO_COMMAND, "StartError")),
    ],
)
def test_a_command_that_the_image_lacks_counts_at_once(main):
    assert _why(seen(main=main)) == (Category.IMAGE, GIVE_UP)
    assert 'exec: "python3": executable file not found' in _of(seen(main=main)).diagnosis.reason


def test_a_container_runtime_that_is_slow_is_given_time():
    assert _why(seen(main=waits("CreateContainerError", "context deadline exceeded"))) == (
        Category.INFRASTRUCTURE,
        WAIT,
    )


@pytest.mark.parametrize("reason", ["FailedMount", "FailedAttachVolume"])
def test_a_volume_that_cannot_be_mounted_is_given_time(reason):
    raws = [event(reason, "Multi-Attach error for volume pvc-1: timed out waiting for the condition")]

    assert _why(seen(), raws=raws) == (Category.INFRASTRUCTURE, WAIT)


def test_a_volume_of_what_does_not_exist_is_refused():
    raws = [event("FailedMount", 'MountVolume.SetUp failed for volume "ca": configmap "ca" not found')]

    assert _why(seen(), raws=raws) == (Category.REJECTED, 60)


def test_a_volume_that_was_late_is_forgotten_once_the_container_runs():
    assert _of(seen(main=runs()), raws=[event("FailedMount", "timed out waiting for the condition")]) is None


# --- crashes


def test_the_first_crash_is_told_but_nobody_gives_up():
    found = _of(seen(main=ended(1, message=error())))

    assert (found.diagnosis.category, found.diagnosis.reason) == (Category.USER_CODE, "ValueError: bad shape")
    assert found.grace is None


def test_the_second_crash_is_a_crash_loop_and_tells_the_exception():
    found = _of(seen(main=waits("CrashLoopBackOff", "back-off 10s restarting failed container", **OFTEN)))

    assert (found.diagnosis.reason, found.grace) == ("ValueError: bad shape", GIVE_UP)
    assert found.diagnosis.traceback == "Traceback …\nValueError"


def test_a_second_pod_that_fails_is_a_crash_loop_too():
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")

    assert _why(first, seen(main=ended(1))) == (Category.USER_CODE, GIVE_UP)


def test_a_step_that_runs_again_is_not_given_up():
    assert _why(seen(main=runs(restarts=3, last=end(1, error())))) == (Category.USER_CODE, None)


def test_a_crash_after_a_long_run_is_no_crash_loop():
    last = end(1, error(), finished=LATER)

    assert _why(seen(main=waits("CrashLoopBackOff", restarts=1, last=last))) == (Category.USER_CODE, None)


def test_of_several_nodes_the_one_with_an_exception_is_to_blame():
    peer = waits("CrashLoopBackOff", restarts=1, last=end(1, finished="2026-11-20T10:00:07Z"))
    cause = runs(restarts=1, last=end(1, error()))
    found = _of(seen("node-1", main=peer), seen(main=cause))

    assert (found.diagnosis.step, found.diagnosis.reason, found.grace) == ("node-0", "ValueError: bad shape", GIVE_UP)


@pytest.mark.parametrize(
    "main",
    [
        ended(137, reason="OOMKilled"),
        waits("CrashLoopBackOff", last=end(137, reason="OOMKilled")),
        runs(restarts=1, last=end(137, reason="OOMKilled")),
    ],
)
def test_lack_of_memory_is_seen_in_the_last_state_too(main):
    assert _why(seen(main=main))[0] is Category.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("code", "category", "says"),
    [
        (1, Category.USER_CODE, "exit code 1"),
        (126, Category.USER_CODE, "cannot be executed"),
        (127, Category.USER_CODE, "was not found"),
        (137, Category.INFRASTRUCTURE, "SIGKILL"),
        (139, Category.USER_CODE, "SIGSEGV"),
        (143, Category.INFRASTRUCTURE, "SIGTERM"),
    ],
)
def test_exit_codes_have_meanings(code, category, says):
    diagnosis = _of(seen(main=ended(code))).diagnosis

    assert diagnosis.category is category
    assert says in diagnosis.reason


def test_a_message_that_is_not_ours_is_told_too():
    message = "Traceback (most recent call last):\n  …\nKeyError: 'lr'\n"
    diagnosis = _of(seen(main=ended(1, message=message))).diagnosis

    assert diagnosis.reason == "it ended with exit code 1: KeyError: 'lr'"
    assert diagnosis.log_tail[-1] == "KeyError: 'lr'"


def test_a_result_left_by_a_step_that_failed_later_is_no_message():
    assert _of(seen(main=ended(1, message='{"result": 3}'))).diagnosis.reason == "it ended with exit code 1"


def test_an_initializer_that_fails_says_what_it_said():
    main = ended(1, "dataset-initializer", message="401 Client Error: acme/private is gated")
    diagnosis = _of(seen("dataset-initializer", main=main)).diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "dataset-initializer")
    assert diagnosis.reason == "401 Client Error: acme/private is gated"


def test_the_end_of_a_log_belongs_to_the_diagnosis():
    found = trouble.trouble([seen(main=ended(1))], tails={"node-0": ["step 1", "boom"]})

    assert found.diagnosis.log_tail == ("step 1", "boom")


def test_a_sidecar_that_fails_is_named():
    pod = seen(main=ended(0), others=[ended(7, "proxy", message="no route")], phase="Failed")

    assert _of(pod).diagnosis.reason == "its container 'proxy' ended with exit code 7: no route"


def test_an_init_container_in_a_crash_loop_is_hopeless():
    prepare = waits("CrashLoopBackOff", name="prepare", restarts=1, last=end(2))
    found = _of(seen(main=waits("PodInitializing"), others=[prepare]))

    assert (found.diagnosis.reason, found.grace) == ("its container 'prepare' ended with exit code 2", GIVE_UP)
