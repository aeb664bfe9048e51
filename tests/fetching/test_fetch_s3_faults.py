"""Whatever S3 storage and the net do, what is fetched is right or not there, and one line says what to do."""

from __future__ import annotations

import os
import signal
import threading
from xml.sax.saxutils import escape

import pytest
from aiohttp import web
from fetching_scene import contents, entries, whole
from s3_storage import trouble
from s3_storage.trouble import Fault

from trainer_core.fetching.s3.download import LARGE
from trainer_core.fetching.source import FetchError

PATIENCE = 60
MIB = 2**20


@pytest.fixture
def data(bucket):
    """URI of a prefix with one object of 4 MiB."""
    bucket("data/a", b"x" * 4 * MIB)
    return f"s3://{bucket.name}/data"


@pytest.fixture
def large(folder_proxy):
    """An object that is fetched in pieces; the proxy in front of it."""
    folder_proxy.body = os.urandom(MIB) * (LARGE // MIB + 8)
    (folder_proxy.folder / "large").write_bytes(folder_proxy.body)
    return folder_proxy


def lists(key):
    """Answer a listing with one object of this key."""

    async def act(proxy, request):
        entry = f"<Contents><Key>{escape(key)}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified>"
        entry += '<ETag>"e"</ETag><Size>3</Size></Contents>'
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    return act


@pytest.mark.parametrize(
    "act",
    [trouble.says(503, "SlowDown"), trouble.says(500, "InternalError"), trouble.says(429, "TooManyRequests")],
    ids=["throttled", "out of order", "too many"],
)
def test_what_passes_by_itself_is_waited_for(data, proxy, fetch, act):
    proxy.faults += [Fault(act, "data/a", 1), Fault(act, "", 1)]
    assert len((fetch(data, proxy.url) / "a").read_bytes()) == 4 * MIB


def test_a_connection_reset_in_the_middle_of_a_body_goes_on_from_there(data, proxy, fetch):
    proxy.faults.append(Fault(trouble.reset(after=MIB), "data/a", 1))
    assert (fetch(data, proxy.url) / "a").read_bytes() == b"x" * 4 * MIB


@pytest.mark.parametrize("key", ["data/a", ""], ids=["an object", "the listing"])
@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (trouble.says(503, "SlowDown"), r"wants fewer requests; try again later \(503 SlowDown\)"),
        (trouble.says(500, "InternalError"), r"out of order; try again later \(500 InternalError\)"),
        (trouble.reset(after=10), "no answer, or only half of one"),
    ],
    ids=["throttled", "out of order", "reset"],
)
def test_what_does_not_pass_is_worth_a_retry_later(data, proxy, fetch, tmp_path, act, complaint, key):
    proxy.faults.append(Fault(act, key))
    with pytest.raises(FetchError, match=complaint) as failed:
        fetch(data, proxy.url)
    assert failed.value.retryable
    assert len(str(failed.value).splitlines()) == 1
    assert entries(tmp_path / "cache") == []


@pytest.mark.parametrize("key", ["data/a", ""], ids=["an object", "the listing"])
@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (trouble.says(400, "ExpiredToken"), "credentials have expired; get new ones"),
        (trouble.says(403, "AccessDenied"), "may not read it: they need s3:ListBucket and s3:GetObject"),
        (trouble.says(403, "SignatureDoesNotMatch"), "check access_key_id and secret_access_key"),
        (trouble.says(403, "InvalidAccessKeyId"), "check access_key_id and secret_access_key"),
        (trouble.says(403, "InvalidObjectState"), "it is archived; restore it first"),
        (trouble.says(301, "PermanentRedirect"), "in another region; give region="),
        (trouble.says(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    ],
)
def test_what_only_a_person_can_mend_is_one_line_and_not_worth_a_retry(data, proxy, fetch, act, complaint, key):
    proxy.faults.append(Fault(act, key))
    with pytest.raises(FetchError, match=complaint) as failed:
        fetch(data, proxy.url)
    assert not failed.value.retryable
    assert len(str(failed.value).splitlines()) == 1


def test_storage_that_does_not_answer_is_worth_a_retry(fetch):
    with pytest.raises(FetchError, match=r"Connection refused.*check endpoint, or try again later") as failed:
        fetch("s3://any/data", "http://127.0.0.1:9", retries=1)
    assert failed.value.retryable


@pytest.mark.parametrize("size", [4 * MIB, 16], ids=["a larger object", "a small one"])
def test_bytes_that_are_not_what_the_etag_says_are_fetched_once_more(bucket, proxy, fetch, size):
    bucket("data/a", b"x" * size)
    proxy.faults.append(Fault(trouble.spoil, "data/a", 1))
    assert (fetch(f"s3://{bucket.name}/data", proxy.url) / "a").read_bytes() == b"x" * size


def test_bytes_that_stay_wrong_are_refused(data, proxy, fetch, tmp_path):
    proxy.faults.append(Fault(trouble.spoil, "data/a"))
    with pytest.raises(FetchError, match="data/a: what came is not what its etag says, 2 times") as failed:
        fetch(data, proxy.url)
    assert not failed.value.retryable
    assert entries(tmp_path / "cache") == []


def test_a_piece_of_a_large_object_that_is_wrong_is_fetched_once_more(large, fetch):
    large.faults.append(Fault(trouble.spoil, "large", 1))
    assert (fetch("s3://any", large.url) / "large").read_bytes() == large.body


def test_an_object_uploaded_in_parts_of_a_size_nobody_guesses_is_checked_all_the_same(bucket, moto, proxy, fetch):
    _, client = moto
    where = {"Bucket": bucket.name, "Key": "data/a"}
    upload = {**where, "UploadId": client.create_multipart_upload(**where)["UploadId"]}
    parts = []
    for number, body in enumerate([b"x" * 6 * MIB, b"y" * MIB], start=1):
        answer = client.upload_part(**upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    proxy.faults.append(Fault(trouble.spoil, "data/a", 1))
    found = contents(fetch(f"s3://{bucket.name}/data", proxy.url))
    assert found == {"a": b"x" * 6 * MIB + b"y" * MIB}
    assert proxy.gets("data/a") == 2


def test_etags_of_storage_that_encrypts_with_keys_of_the_users_are_no_checksums(bucket, moto, fetch):
    _, client = moto
    client.put_object(Bucket=bucket.name, Key="data/a", Body=b"1", ServerSideEncryption="aws:kms")

    async def with_another_etag(proxy, request):
        answer = await proxy.forward(request)
        answer.text = answer.body.decode().replace("c4ca4238a0b923820dcc509a6f75849b", "0" * 32)
        return answer

    proxy = trouble.Proxy(moto[0])
    proxy.faults += [Fault(with_another_etag, ""), Fault(without_conditions, "data/a")]
    from s3_storage import serving

    with serving.served(proxy.app()) as url:
        assert contents(fetch(f"s3://{bucket.name}/data", url)) == {"a": b"1"}


async def without_conditions(proxy, request):
    headers = {name: value for name, value in request.headers.items() if name.lower() != "if-match"}
    return await proxy.forward(request.clone(headers=headers))


def test_an_object_that_changes_after_it_was_listed_is_refused_and_worth_a_retry(bucket, data, proxy, fetch):
    proxy.faults.append(Fault(trouble.after(lambda: bucket("data/a", b"new")), "data/a", 1))
    with pytest.raises(FetchError, match="it changed while it was fetched") as failed:
        fetch(data, proxy.url)
    assert failed.value.retryable
    assert contents(fetch(data, proxy.url)) == {"a": b"new"}


def test_an_object_that_is_gone_after_it_was_listed_is_worth_a_retry(data, proxy, fetch):
    proxy.faults.append(Fault(trouble.says(404, "NoSuchKey"), "data/a", 1))
    with pytest.raises(FetchError, match="it is gone since the bucket was listed") as failed:
        fetch(data, proxy.url)
    assert failed.value.retryable


@pytest.mark.parametrize("key", ["data/../../x", "data/./x", "data//x", "data/a\nb"])
def test_a_listing_with_names_that_lead_elsewhere_is_refused_in_one_line(proxy, fetch, tmp_path, key):
    proxy.faults.append(Fault(lists(key)))
    with pytest.raises(FetchError, match="a key in it can be no path of a folder") as refused:
        fetch("s3://any/data", proxy.url)
    assert len(str(refused.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_is_killed_goes_on_where_it_was(bucket, proxy, program, tmp_path):
    for name in "abcdefgh":
        bucket(f"data/{name}", name.encode())
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(trouble.held(at, until), "data/h", 1))
    killed = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(PATIENCE)
    wait_for(lambda: len(whole(tmp_path / "cache")) == 7)
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    until.set()
    again = program(f"s3://{bucket.name}/data", proxy.url)
    assert again.wait(PATIENCE) == 0, again.stdout.read()
    (folder,) = entries(tmp_path / "cache")
    assert contents(folder) == {name: name.encode() for name in "abcdefgh"}
    assert [proxy.gets(f"data/{name}") for name in "abcdefgh"] == [1, 1, 1, 1, 1, 1, 1, 2]


def test_a_large_object_whose_fetch_is_killed_goes_on_with_its_missing_pieces(large, program, tmp_path):
    at, until = threading.Event(), threading.Event()
    large.faults.append(Fault(trouble.held(at, until), "large", 1))
    killed = program("s3://any", large.url)
    assert at.wait(PATIENCE)
    wait_for(lambda: sum(path.stat().st_size for path in tmp_path.glob("cache/.*.part/.s3/*")) == 8 * 20)
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    until.set()
    again = program("s3://any", large.url)
    assert again.wait(PATIENCE) == 0, again.stdout.read()
    (folder,) = entries(tmp_path / "cache")
    assert contents(folder) == {"large": large.body}
    assert large.gets("large") == 9 + 1


def test_two_processes_that_want_the_same_fetch_it_once(bucket, proxy, program):
    bucket("data/a", b"1")
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(trouble.held(at, until), "data/a", 1))
    first = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(PATIENCE)
    second = program(f"s3://{bucket.name}/data", proxy.url)
    wait_for(lambda: len(proxy.seen) == 3)
    until.set()
    assert [process.wait(PATIENCE) for process in (first, second)] == [0, 0]
    assert proxy.gets("data/a") == 1
    assert "found in" in second.stdout.read()


def wait_for(done):
    import time

    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)
