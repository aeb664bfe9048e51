from __future__ import annotations

import json

import pytest

from trainer_core.cluster import answers
from trainer_core.cluster.kinds import PODS, SECRETS, TRAINJOBS
from trainer_core.errors import BackendUnavailableError, InvalidRequestError, TrainerError

TASK = "create TrainJob 'x' in namespace 'team'"
NO_ROLE = (
    'pods is forbidden: User "system:serviceaccount:team:worker" cannot list resource "pods" in API group "" '
    'in the namespace "team"'
)
DENIED = (
    'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
    'spec.runtimeRef: Invalid value: "x": ClusterTrainingRuntime not found'
)


def status(code, message, reason, details):
    return json.dumps(
        {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
    ).encode()


def answer(code, message="", reason="", kind=TRAINJOBS, headers=None, **details):
    return answers.error(code, status(code, message, reason, details), TASK, kind, headers)


def no_namespace():
    details = {"name": "t", "kind": "namespaces"}
    return answers.error(404, status(404, 'namespaces "t" not found', "NotFound", details), TASK, TRAINJOBS)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (answer(400, "strict decoding error"), answers.RejectedError),
        (answer(401, "Unauthorized"), answers.UnauthorizedError),
        (answer(403, NO_ROLE, "Forbidden"), answers.ForbiddenError),
        (answer(403, DENIED, "Forbidden"), answers.RejectedError),
        (answer(403, 'User "system:anonymous" cannot get path "/x"', "Forbidden"), answers.UnauthorizedError),
        (answer(404, 'trainjobs "x" not found', "NotFound", name="x"), answers.NotThereError),
        (no_namespace(), answers.RejectedError),
        (answer(404, "the server could not find the requested resource"), answers.NotInstalledError),
        (answer(409, "already exists", "AlreadyExists"), answers.TakenError),
        (answer(409, "the object has been modified", "Conflict"), answers.StaleError),
        (answer(410, "too old resource version", "Expired"), answers.GoneError),
        (answer(413, "limit is 3145728", "RequestEntityTooLarge"), answers.RejectedError),
        (answer(422, "is invalid", "Invalid"), answers.RejectedError),
        (answer(429, "too many requests", "TooManyRequests"), answers.BusyError),
        (answer(500, "etcdserver: leader changed"), answers.BusyError),
        (answer(503, "unavailable"), answers.BusyError),
    ],
)
def test_every_refusal_has_its_error(error, expected):
    assert type(error) is expected


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (answer(401, "Unauthorized"), "has expired or is not known there: log in to the cluster again"),
        (answer(403, NO_ROLE, "Forbidden"), "ask for a role that may list pods"),
        (answer(404, "the server could not find the requested resource"), "Kubeflow Trainer v2 is not installed"),
        (answer(404, "404 page not found", kind=PODS), "pods of v1 is not served"),
        (no_namespace(), "create the namespace"),
        (answer(429, "slow down", headers={"Retry-After": "7"}), "try again in 7 seconds"),
        (answer(429, "slow down", retryAfterSeconds=3), "try again in 3 seconds"),
        (answer(500, 'failed calling webhook "v": connection refused'), "the controller that checks it does not"),
        (answer(403, 'trainjobs "x" is forbidden: exceeded quota: jobs', "Forbidden"), "a larger quota"),
    ],
)
def test_every_refusal_says_what_to_do(error, advice):
    assert advice in str(error)


def test_the_words_of_admission_are_kept():
    assert str(answer(403, DENIED, "Forbidden")) == (
        f"the cluster refused to {TASK}: {DENIED}; change what it names and submit again"
    )


def test_causes_stand_in_one_line():
    message = "is invalid: [spec.a: Required value,\n  spec.b: Invalid value: 1]"

    assert "[spec.a: Required value, spec.b: Invalid value: 1]" in str(answer(422, message, "Invalid"))


def test_a_missing_role_names_verb_and_resource():
    error = answer(403, NO_ROLE, "Forbidden")

    assert (error.verb, error.resource) == ("list", "pods")


@pytest.mark.parametrize("code", [401, 403, 404])
def test_what_only_a_person_can_mend_is_not_taken_for_an_outage(code):
    error = answer(code, NO_ROLE if code == 403 else "")

    assert isinstance(error, BackendUnavailableError)
    assert not error.transient


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_an_outage_is_taken_for_one(code):
    assert answers.error(code, b"<html>bad gateway</html>", TASK, TRAINJOBS).transient


def test_a_body_that_is_no_status_is_cut():
    error = answers.error(502, b"<html>\n" + b"x" * 100_000, TASK, TRAINJOBS)

    assert len(str(error)) < 1300


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b"null", b'{"kind": "Status", "details": 1}', b"{"])
@pytest.mark.parametrize("code", [302, 400, 401, 403, 404, 409, 410, 418, 422, 429, 500, 599])
def test_any_body_gives_an_error_of_one_line(code, body):
    error = answers.error(code, body, TASK, TRAINJOBS)

    assert isinstance(error, TrainerError)
    assert str(error).isprintable()


def test_control_characters_do_not_reach_a_terminal():
    assert "\x1b" not in str(answer(422, "\x1b[31mred\x07"))


def test_what_a_server_quotes_of_a_secret_is_not_shown():
    quoted = 'Secret in version "v1" cannot be handled: error found in #10 byte of ...|":"hunter2"}...'

    error = answer(400, quoted, "BadRequest", kind=SECRETS, causes=[{"field": "data.key"}])

    assert "hunter2" not in str(error)
    assert "data.key" in str(error)


def test_a_redirect_is_no_answer_of_a_cluster():
    assert "check the server's address" in str(answers.error(302, b"", TASK, TRAINJOBS))


def test_a_certificate_that_is_not_trusted_says_where_to_name_the_ca():
    error = answers.unreachable(TASK, "https://c", OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))

    assert "SSL_CERT_FILE" in str(error)


def test_rejections_are_mistakes_in_the_request():
    assert isinstance(answer(422, "is invalid"), InvalidRequestError)


def test_a_patch_that_names_the_uid_of_an_earlier_object_found_another():
    causes = [{"reason": "FieldValueInvalid", "field": "metadata.uid", "message": "field is immutable"}]
    status = {"kind": "Status", "reason": "Invalid", "message": "is invalid", "details": {"causes": causes}}

    assert isinstance(answers.error(422, json.dumps(status).encode(), "change TrainJob 'job'"), answers.StaleError)
