"""Faults of S3 storage and the network: retries, resumed downloads, verification and error messages."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from xml.sax.saxutils import escape

import pytest
from aiohttp import web
from fetch_helpers import list_complete_files, list_entries, read_files
from s3_storage import faults
from s3_storage.faults import Fault

from trainer_core.fetch.s3.download import LARGE_FILE_SIZE
from trainer_core.fetch.source import FetchError
from trainer_core.model.logs import parse_progress

TIMEOUT = 300
MIB = 2**20


@pytest.fixture
def data(bucket):
    """URI of a prefix with one object of 4 MiB."""
    bucket("data/a", b"x" * 4 * MIB)
    return f"s3://{bucket.name}/data"


@pytest.fixture
def large(folder_proxy):
    """A proxy in front of an object that is downloaded in pieces."""
    folder_proxy.body = os.urandom(MIB) * (LARGE_FILE_SIZE // MIB + 8)
    (folder_proxy.folder / "large").write_bytes(folder_proxy.body)
    return folder_proxy


def answer_listing(key):
    """Answer a listing with one object of this key."""

    async def act(proxy, request):
        entry = f"<Contents><Key>{escape(key)}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified>"
        entry += '<ETag>"e"</ETag><Size>3</Size></Contents>'
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    return act


@pytest.mark.parametrize(
    "act",
    [faults.says(503, "SlowDown"), faults.says(500, "InternalError"), faults.says(429, "TooManyRequests")],
    ids=["throttled", "server error", "too many"],
)
def test_transient_errors_are_retried(data, proxy, fetch, act):
    proxy.faults += [Fault(act, "data/a", 1), Fault(act, "", 1)]
    assert len((fetch(data, proxy.url) / "a").read_bytes()) == 4 * MIB


def test_a_connection_reset_within_a_body_is_resumed(data, proxy, fetch):
    proxy.faults.append(Fault(faults.reset(after=MIB), "data/a", 1))
    assert (fetch(data, proxy.url) / "a").read_bytes() == b"x" * 4 * MIB


@pytest.mark.parametrize("uri", ["data", "data/a"], ids=["a prefix", "one object"])
def test_a_request_that_the_storage_waited_too_long_for_is_retryable(bucket, data, proxy, fetch, uri):
    proxy.faults.append(Fault(faults.says(400, "RequestTimeout"), "data/a"))
    with pytest.raises(
        FetchError, match=r"waited too long for the request; try again later \(400 RequestTimeout\)"
    ) as raised:
        fetch(f"s3://{bucket.name}/{uri}", proxy.url)
    assert raised.value.retryable


def test_expired_keys_of_one_object_are_named(bucket, data, proxy, fetch):
    proxy.faults.append(Fault(faults.says(400, "ExpiredToken"), "data/a"))
    with pytest.raises(FetchError, match=r"the credentials have expired; create new ones \(400 ExpiredToken\)"):
        fetch(f"s3://{bucket.name}/data/a", proxy.url)


@pytest.mark.parametrize("key", ["data/a", ""], ids=["an object", "the listing"])
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (faults.says(503, "SlowDown"), r"limits the rate of requests; try again later \(503 SlowDown\)"),
        (faults.says(500, "InternalError"), r"server error; try again later \(500 InternalError\)"),
        (faults.reset(after=10), "the connection failed"),
    ],
    ids=["throttled", "server error", "reset"],
)
def test_lasting_server_errors_are_retryable_and_leave_no_entry_in_the_cache(
    data, proxy, fetch, tmp_path, act, message, key
):
    proxy.faults.append(Fault(act, key))
    with pytest.raises(FetchError, match=message) as raised:
        fetch(data, proxy.url)
    assert raised.value.retryable
    assert len(str(raised.value).splitlines()) == 1
    assert list_entries(tmp_path / "cache") == []


@pytest.mark.parametrize("key", ["data/a", ""], ids=["an object", "the listing"])
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (faults.says(400, "ExpiredToken"), "credentials have expired; create new ones"),
        (faults.says(403, "AccessDenied"), "may not read it; grant them s3:ListBucket and s3:GetObject"),
        (faults.says(403, "SignatureDoesNotMatch"), "check access_key_id and secret_access_key"),
        (faults.says(403, "InvalidAccessKeyId"), "check access_key_id and secret_access_key"),
        (faults.says(403, "InvalidObjectState"), "the object is archived; restore it first"),
        (faults.says(301, "PermanentRedirect"), "in another region; set region"),
        (faults.says(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    ],
)
def test_rejected_requests_are_permanent_errors_in_one_line(data, proxy, fetch, act, message, key):
    proxy.faults.append(Fault(act, key))
    with pytest.raises(FetchError, match=message) as raised:
        fetch(data, proxy.url)
    assert not raised.value.retryable
    assert len(str(raised.value).splitlines()) == 1


def test_an_unreachable_storage_is_a_retryable_error(fetch):
    with pytest.raises(FetchError, match=r"Connection refused.*check endpoint, or try again later") as raised:
        fetch("s3://any/data", "http://127.0.0.1:9", retries=1)
    assert raised.value.retryable


@pytest.mark.parametrize("size", [4 * MIB, 16], ids=["a larger object", "a small one"])
def test_bytes_that_do_not_match_the_etag_are_fetched_again(bucket, proxy, fetch, size):
    bucket("data/a", b"x" * size)
    proxy.faults.append(Fault(faults.spoil, "data/a", 1))
    assert (fetch(f"s3://{bucket.name}/data", proxy.url) / "a").read_bytes() == b"x" * size


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_last_line_counts_each_file_and_its_bytes_once_although_it_was_fetched_twice(large, fetch, name, capsys):
    (large.folder / "small").write_bytes(b"x" * MIB)
    large.faults.append(Fault(faults.spoil, name, 1))
    fetch("s3://any", large.url)
    last = parse_progress(capsys.readouterr().out.splitlines()[-1])
    assert (last["step"], last["metrics"]["files"]) == (last["total"], 2)


def test_bytes_that_do_not_match_the_etag_twice_are_rejected(data, proxy, fetch, tmp_path):
    proxy.faults.append(Fault(faults.spoil, "data/a"))
    with pytest.raises(FetchError, match="data/a: the received bytes do not match its ETag, 2 times") as raised:
        fetch(data, proxy.url)
    assert not raised.value.retryable
    assert list_entries(tmp_path / "cache") == []


def test_a_damaged_piece_of_a_large_object_is_fetched_again(large, fetch):
    large.faults.append(Fault(faults.spoil, "large", 1))
    assert (fetch("s3://any", large.url) / "large").read_bytes() == large.body


def test_an_object_with_an_unusual_part_size_is_verified(bucket, moto, proxy, fetch):
    _, client = moto
    where = {"Bucket": bucket.name, "Key": "data/a"}
    upload = {**where, "UploadId": client.create_multipart_upload(**where)["UploadId"]}
    parts = []
    for number, body in enumerate([b"x" * 6 * MIB, b"y" * MIB], start=1):
        answer = client.upload_part(**upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    proxy.faults.append(Fault(faults.spoil, "data/a", 1))
    found = read_files(fetch(f"s3://{bucket.name}/data", proxy.url))
    assert found == {"a": b"x" * 6 * MIB + b"y" * MIB}
    assert proxy.gets("data/a") == 2


def test_the_etag_of_an_object_encrypted_with_kms_is_not_verified(bucket, moto, fetch):
    _, client = moto
    client.put_object(Bucket=bucket.name, Key="data/a", Body=b"1", ServerSideEncryption="aws:kms")

    async def with_another_etag(proxy, request):
        answer = await proxy.forward(request)
        answer.text = answer.body.decode().replace("c4ca4238a0b923820dcc509a6f75849b", "0" * 32)
        return answer

    proxy = faults.Proxy(moto[0])
    proxy.faults += [Fault(with_another_etag, ""), Fault(without_conditions, "data/a")]
    from s3_storage import serving

    with serving.served(proxy.app()) as url:
        assert read_files(fetch(f"s3://{bucket.name}/data", url)) == {"a": b"1"}


async def without_conditions(proxy, request):
    headers = {name: value for name, value in request.headers.items() if name.lower() != "if-match"}
    return await proxy.forward(request.clone(headers=headers))


def test_an_object_that_changes_after_the_listing_is_a_retryable_error(bucket, data, proxy, fetch):
    proxy.faults.append(Fault(faults.after(lambda: bucket("data/a", b"new")), "data/a", 1))
    with pytest.raises(FetchError, match="the object changed while it was fetched") as raised:
        fetch(data, proxy.url)
    assert raised.value.retryable
    assert read_files(fetch(data, proxy.url)) == {"a": b"new"}


def test_an_object_deleted_after_the_listing_is_a_retryable_error(data, proxy, fetch):
    proxy.faults.append(Fault(faults.says(404, "NoSuchKey"), "data/a", 1))
    with pytest.raises(FetchError, match="the object was deleted after the bucket was listed") as raised:
        fetch(data, proxy.url)
    assert raised.value.retryable


@pytest.mark.parametrize("key", ["data/../../x", "data/./x", "data//x", "data/a\nb"])
def test_a_key_that_leads_out_of_the_folder_is_rejected_in_one_line(proxy, fetch, tmp_path, key):
    proxy.faults.append(Fault(answer_listing(key)))
    name = re.escape(json.dumps(key))
    with pytest.raises(FetchError, match=f"^s3://any: {name} is not a valid path of a file; rename") as raised:
        fetch("s3://any/data", proxy.url)
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_a_file_system_takes_in_several_writes_are_all_in_their_place(bucket, moto, fetch, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: write(file, data[:3], position))
    bucket("data/a", b"0123456789")
    assert read_files(fetch(f"s3://{bucket.name}/data", moto[0])) == {"a": b"0123456789"}


def test_a_killed_fetch_is_resumed(bucket, proxy, program, tmp_path):
    for name in "abcdefgh":
        bucket(f"data/{name}", name.encode())
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(faults.held(at, until), "data/h", 1))
    killed = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(TIMEOUT)
    wait_for(lambda: len(list_complete_files(tmp_path / "cache")) == 7)
    killed.send_signal(signal.SIGKILL)
    killed.wait(TIMEOUT)
    until.set()
    again = program(f"s3://{bucket.name}/data", proxy.url)
    assert again.wait(TIMEOUT) == 0, again.stdout.read()
    (folder,) = list_entries(tmp_path / "cache")
    assert read_files(folder) == {name: name.encode() for name in "abcdefgh"}
    assert [proxy.gets(f"data/{name}") for name in "abcdefgh"] == [1, 1, 1, 1, 1, 1, 1, 2]


def test_a_killed_fetch_of_a_large_object_downloads_only_the_missing_pieces(large, program, tmp_path):
    at, until = threading.Event(), threading.Event()
    large.faults.append(Fault(faults.held(at, until), "large", 1))
    killed = program("s3://any", large.url)
    assert at.wait(TIMEOUT)
    wait_for(lambda: sum(path.stat().st_size for path in tmp_path.glob("cache/.*.part/.s3/*")) == 8 * 20)
    killed.send_signal(signal.SIGKILL)
    killed.wait(TIMEOUT)
    until.set()
    again = program("s3://any", large.url)
    assert again.wait(TIMEOUT) == 0, again.stdout.read()
    (folder,) = list_entries(tmp_path / "cache")
    assert read_files(folder) == {"large": large.body}
    assert large.gets("large") == 9 + 1


def test_two_processes_fetch_the_same_source_once(bucket, proxy, program):
    bucket("data/a", b"1")
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(faults.held(at, until), "data/a", 1))
    first = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(TIMEOUT)
    second = program(f"s3://{bucket.name}/data", proxy.url)
    wait_for(lambda: len(proxy.seen) >= 3)
    until.set()
    assert [process.wait(TIMEOUT) for process in (first, second)] == [0, 0]
    assert proxy.gets("data/a") == 1
    assert "found in" in second.stdout.read()


def wait_for(done):
    import time

    end = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)
