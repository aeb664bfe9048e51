"""ETags as checksums, the journal of pieces, snapshots and parallel calls."""

from __future__ import annotations

import hashlib

import pytest
from s3_storage import static

from trainer_core.fetch import parallel
from trainer_core.fetch.s3 import etags
from trainer_core.fetch.s3.download import PieceJournal
from trainer_core.fetch.source import FetchError, Snapshot, SourceFile

MIB = 2**20


def compute_etag(checksum, data, step):
    view = memoryview(data)
    for start in range(0, len(data), step):
        checksum.update(view[start : start + step])
    return checksum.etag()


@pytest.mark.parametrize("size", [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB, 20 * MIB])
def test_the_computed_etag_equals_the_etag_of_the_storage(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "file"
    path.write_bytes(data[:size])
    etag = static.etag(path)
    part = etags.guess_part_size(size, etags.count_parts(etag)) if etags.count_parts(etag) else 0
    assert compute_etag(etags.Checksum(part), data[:size], 3 * MIB) == etag


def test_an_upload_of_one_part_has_a_multipart_etag():
    data = b"digits"
    expected = etags.combine_md5s([hashlib.md5(data, usedforsecurity=False).digest()])
    assert compute_etag(etags.Checksum(etags.guess_part_size(len(data), 1)), data, 2) == expected


@pytest.mark.parametrize(
    ("size", "count", "part"),
    [
        (20 * MIB, 3, 8 * MIB),
        (100 * MIB, 20, 5 * MIB),
        (2000 * MIB, 250, 8 * MIB),
        (10_000 * MIB, 10_000, MIB),
        (100 * MIB, 7, 16 * MIB),
        (100_000_000, 10, 10 * MIB),
        (100, 1, 100),
        (100, 3, 34),
    ],
)
def test_the_guessed_part_size_is_the_roundest_one(size, count, part):
    assert etags.guess_part_size(size, count) == part


def test_a_journal_is_read_by_the_next_process(tmp_path):
    first = PieceJournal(tmp_path / "file", 25, 10)
    first.add(1, b"1" * 16)
    later = PieceJournal(tmp_path / "file", 25, 10)
    assert later.list_missing() == [(0, 10), (2, 5)]
    assert later.count_present_bytes() == 10


def test_a_partial_record_of_a_journal_is_ignored(tmp_path):
    first = PieceJournal(tmp_path / "file", 25, 10)
    first.add(0, b"0" * 16)
    first.add(1, b"1" * 16)
    (record,) = tmp_path.iterdir()
    record.write_bytes(record.read_bytes()[:-1])
    later = PieceJournal(tmp_path / "file", 25, 10)
    later.add(2, b"2" * 16)
    assert PieceJournal(tmp_path / "file", 25, 10).list_missing() == [(1, 10)]


def test_a_journal_is_ignored_if_the_piece_size_differs(tmp_path):
    PieceJournal(tmp_path / "file", 25, 10).add(0, b"0" * 16)
    assert PieceJournal(tmp_path / "file", 25, 5).count_present_bytes() == 0


@pytest.mark.parametrize("path", ["../x", "a/../x", "/x", "a//x", "./x", "a/.", "", "a\\..\\x", "a\0"])
def test_a_path_that_leads_out_of_the_folder_is_rejected(path):
    with pytest.raises(FetchError, match="is not a path inside a folder"):
        SourceFile(path, 1)


def test_a_path_that_is_both_a_file_and_a_folder_is_rejected():
    with pytest.raises(FetchError, match="'a' is both a file and a folder"):
        Snapshot("any", (SourceFile("a", 1), SourceFile("a/b", 1)))


@pytest.mark.parametrize("other", [SourceFile("b", 1, "x"), SourceFile("a", 2, "x"), SourceFile("a", 1, "y")])
def test_the_digest_differs_if_a_path_size_or_tag_differs(other):
    assert Snapshot("any", (SourceFile("a", 1, "x"),)).digest != Snapshot("any", (other,)).digest


def test_parallel_calls_stop_after_the_first_failure_and_raise_it():
    done = []

    def work(number):
        done.append(number)
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        parallel.run_parallel(work, range(1000), workers=2)
    assert len(done) < 1000
