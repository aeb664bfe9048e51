from __future__ import annotations

import json

import pytest

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, TrainerError
from trainer_core.k8s import errors
from trainer_core.k8s.resources import PODS, SECRETS, TRAINJOBS

TASK = "create TrainJob 'x' in namespace 'team'"
RBAC_DENIAL = (
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


def build_error(code, message="", reason="", kind=TRAINJOBS, headers=None, **details):
    return errors.build_response_error(code, status(code, message, reason, details), TASK, kind, headers)


def build_missing_namespace_error():
    details = {"name": "t", "kind": "namespaces"}
    return errors.build_response_error(
        404, status(404, 'namespaces "t" not found', "NotFound", details), TASK, TRAINJOBS
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (build_error(400, "strict decoding error"), errors.RejectedError),
        (build_error(401, "Unauthorized"), errors.UnauthorizedError),
        (build_error(403, RBAC_DENIAL, "Forbidden"), errors.ForbiddenError),
        (build_error(403, DENIED, "Forbidden"), errors.RejectedError),
        (build_error(403, 'User "system:anonymous" cannot get path "/x"', "Forbidden"), errors.UnauthorizedError),
        (build_error(404, 'trainjobs "x" not found', "NotFound", name="x"), errors.NotFoundError),
        (build_missing_namespace_error(), errors.RejectedError),
        (build_error(404, "the server could not find the requested resource"), errors.ApiNotServedError),
        (build_error(409, "already exists", "AlreadyExists"), errors.AlreadyExistsError),
        (build_error(409, "the object has been modified", "Conflict"), errors.WriteConflictError),
        (build_error(410, "too old resource version", "Expired"), errors.ResourceExpiredError),
        (build_error(413, "limit is 3145728", "RequestEntityTooLarge"), errors.RejectedError),
        (build_error(422, "is invalid", "Invalid"), errors.RejectedError),
        (build_error(429, "too many requests", "TooManyRequests"), errors.ServerBusyError),
        (build_error(500, "etcdserver: leader changed"), errors.ServerBusyError),
        (build_error(503, "unavailable"), errors.ServerBusyError),
    ],
)
def test_each_response_maps_to_its_error_type(error, expected):
    assert type(error) is expected


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (build_error(401, "Unauthorized"), "has expired or is unknown: log in to the cluster again"),
        (build_error(403, RBAC_DENIAL, "Forbidden"), "ask for a role that may list pods"),
        (build_error(404, "the server could not find the requested resource"), "Kubeflow Trainer v2 is not installed"),
        (build_error(404, "404 page not found", kind=PODS), "pods of v1 is not served"),
        (build_missing_namespace_error(), "create the namespace"),
        (build_error(429, "slow down", headers={"Retry-After": "7"}), "retry in 7 seconds"),
        (build_error(429, "slow down", retryAfterSeconds=3), "retry in 3 seconds"),
        (build_error(500, 'failed calling webhook "v": connection refused'), "the admission webhook does not respond"),
        (build_error(403, 'trainjobs "x" is forbidden: exceeded quota: jobs', "Forbidden"), "a larger quota"),
    ],
)
def test_each_message_says_what_to_do(error, advice):
    assert advice in str(error)


def test_the_message_of_an_admission_webhook_is_kept():
    assert str(build_error(403, DENIED, "Forbidden")) == (
        f"the cluster refused to {TASK}: {DENIED}; correct the request and submit it again"
    )


def test_several_causes_are_one_line():
    message = "is invalid: [spec.a: Required value,\n  spec.b: Invalid value: 1]"

    assert "[spec.a: Required value, spec.b: Invalid value: 1]" in str(build_error(422, message, "Invalid"))


def test_an_rbac_denial_has_the_verb_and_the_resource():
    error = build_error(403, RBAC_DENIAL, "Forbidden")

    assert (error.verb, error.resource) == ("list", "pods")


@pytest.mark.parametrize("code", [401, 403, 404])
def test_an_error_that_the_user_must_correct_is_not_transient(code):
    error = build_error(code, RBAC_DENIAL if code == 403 else "")

    assert isinstance(error, BackendUnavailableError)
    assert not error.transient


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_an_overloaded_server_is_transient(code):
    assert errors.build_response_error(code, b"<html>bad gateway</html>", TASK, TRAINJOBS).transient


def test_a_long_body_that_is_not_a_status_is_truncated():
    error = errors.build_response_error(502, b"<html>\n" + b"x" * 100_000, TASK, TRAINJOBS)

    assert len(str(error)) < 1300


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b"null", b'{"kind": "Status", "details": 1}', b"{"])
@pytest.mark.parametrize("code", [302, 400, 401, 403, 404, 409, 410, 418, 422, 429, 500, 599])
def test_any_body_leads_to_an_error_of_one_line(code, body):
    error = errors.build_response_error(code, body, TASK, TRAINJOBS)

    assert isinstance(error, TrainerError)
    assert str(error).isprintable()


def test_control_characters_are_removed():
    assert "\x1b" not in str(build_error(422, "\x1b[31mred\x07"))


def test_a_secret_that_the_server_quotes_is_not_in_the_message():
    quoted = 'Secret in version "v1" cannot be handled: error found in #10 byte of ...|":"hunter2"}...'

    error = build_error(400, quoted, "BadRequest", kind=SECRETS, causes=[{"field": "data.key"}])

    assert "hunter2" not in str(error)
    assert "data.key" in str(error)


def test_a_redirect_leads_to_advice_to_check_the_address():
    assert "check the server's address" in str(errors.build_response_error(302, b"", TASK, TRAINJOBS))


def test_an_untrusted_certificate_leads_to_advice_about_the_ca():
    error = errors.build_connection_error(TASK, "https://c", OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))

    assert "SSL_CERT_FILE" in str(error)


def test_a_certificate_that_is_not_yet_valid_leads_to_the_clock():
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid (_ssl.c:1006)"

    assert "check the clock" in str(errors.build_connection_error(TASK, "https://c", OSError(text)))


def test_a_rejected_object_is_an_invalid_request():
    assert isinstance(build_error(422, "is invalid"), InvalidRequestError)


def test_a_patch_with_the_uid_of_a_replaced_object_is_a_write_conflict():
    causes = [{"reason": "FieldValueInvalid", "field": "metadata.uid", "message": "field is immutable"}]
    status = {"kind": "Status", "reason": "Invalid", "message": "is invalid", "details": {"causes": causes}}

    assert isinstance(
        errors.build_response_error(422, json.dumps(status).encode(), "patch TrainJob 'job'"),
        errors.WriteConflictError,
    )
