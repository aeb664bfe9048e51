"""Etags as checksums, the pieces of a large file, and what paths a source may have."""

from __future__ import annotations

import hashlib

import pytest
from s3_storage import static

from trainer_core.fetching import parallel
from trainer_core.fetching.s3 import etags
from trainer_core.fetching.s3.pieces import Pieces
from trainer_core.fetching.source import FetchError, File, Snapshot

MIB = 2**20


def fed(checksum, data, step):
    view = memoryview(data)
    for start in range(0, len(data), step):
        checksum.update(view[start : start + step])
    return checksum.etag()


@pytest.mark.parametrize("size", [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB, 20 * MIB])
def test_the_etag_of_bytes_is_the_one_that_storage_gives(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "file"
    path.write_bytes(data[:size])
    etag = static.etag(path)
    part = etags.likely_part_size(size, etags.count_of(etag)) if etags.count_of(etag) else 0
    assert fed(etags.Checksum(part), data[:size], 3 * MIB) == etag


def test_an_object_uploaded_in_one_part_has_an_etag_of_parts():
    data = b"digits"
    whole = etags.combined([hashlib.md5(data, usedforsecurity=False).digest()])
    assert fed(etags.Checksum(etags.likely_part_size(len(data), 1)), data, 2) == whole


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
def test_the_size_of_parts_is_the_most_natural_one(size, count, part):
    assert etags.likely_part_size(size, count) == part


def test_pieces_are_known_to_whoever_comes_later(tmp_path):
    first = Pieces(tmp_path / "file", 25, 10)
    first.add(1, b"1" * 16)
    later = Pieces(tmp_path / "file", 25, 10)
    assert later.missing() == [(0, 10), (2, 5)]
    assert later.present() == 10


def test_a_record_that_was_cut_off_counts_as_none(tmp_path):
    first = Pieces(tmp_path / "file", 25, 10)
    first.add(0, b"0" * 16)
    first.add(1, b"1" * 16)
    (record,) = tmp_path.iterdir()
    record.write_bytes(record.read_bytes()[:-1])
    later = Pieces(tmp_path / "file", 25, 10)
    later.add(2, b"2" * 16)
    assert Pieces(tmp_path / "file", 25, 10).missing() == [(1, 10)]


def test_pieces_of_another_size_are_others(tmp_path):
    Pieces(tmp_path / "file", 25, 10).add(0, b"0" * 16)
    assert Pieces(tmp_path / "file", 25, 5).present() == 0


@pytest.mark.parametrize("path", ["../x", "a/../x", "/x", "a//x", "./x", "a/.", "", "a\\..\\x", "a\0"])
def test_a_path_that_is_none_inside_a_folder_is_refused(path):
    with pytest.raises(FetchError, match="is no path inside a folder"):
        File(path, 1)


def test_a_name_that_is_a_file_and_a_folder_is_refused():
    with pytest.raises(FetchError, match="'a' is a file and a folder"):
        Snapshot("any", (File("a", 1), File("a/b", 1)))


@pytest.mark.parametrize("other", [File("b", 1, "x"), File("a", 2, "x"), File("a", 1, "y")])
def test_another_path_size_or_tag_is_another_content(other):
    assert Snapshot("any", (File("a", 1, "x"),)).digest != Snapshot("any", (other,)).digest


def test_the_first_failure_ends_the_work_and_is_told():
    done = []

    def work(number):
        done.append(number)
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        parallel.each(work, range(1000), workers=2)
    assert len(done) < 1000
