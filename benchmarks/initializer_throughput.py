"""Our S3 fetch against boto3's transfer manager and opendal, as Trainer's own initializer uses it (list, then read).

Same server, same run, each in a fresh process as an initializer step is; medians over alternating rounds, so that all
see the same machine. Prints seconds, MB/s, seconds of processor time, and the ratio to the fastest other (target: at
most 1.0). Ours checks every byte against the etag and leaves a folder that is there whole or not at all; the others
do neither.

    python benchmarks/initializer_throughput.py                                   # 2,000 of 16 KB, 512 MB; 3 rounds
    python benchmarks/initializer_throughput.py --files 10000 --large 2000 --rounds 3   # the goal's sizes

The server (tests/fakes/s3_storage/static.py) is a separate process. It keeps small objects in memory and sends large
ones from the kernel's cache to the socket, so that it is slower than none of the three.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
SMALL = 16 * 1024
MB = 10**6
CONTENDERS = ("ours", "boto3", "opendal")
KEYS = {"access_key_id": "AKIAMADEUP", "secret_access_key": "made-up"}


def by_boto3(endpoint: str, prefix: str, target: Path) -> None:
    """Fetch with boto3's transfer manager, as it comes."""
    import boto3
    from s3transfer.manager import TransferManager

    keys = {"aws_access_key_id": KEYS["access_key_id"], "aws_secret_access_key": KEYS["secret_access_key"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    with TransferManager(client) as manager:
        downloads = []
        for key in (entry["Key"] for page in pages for entry in page["Contents"]):
            path = target / key
            path.parent.mkdir(parents=True, exist_ok=True)
            downloads.append(manager.download("bucket", key, str(path)))
        for download in downloads:
            download.result()


def by_opendal(endpoint: str, prefix: str, target: Path) -> None:
    """Fetch as Trainer's initializer does."""
    import opendal

    place = opendal.Operator("s3", bucket="bucket", endpoint=endpoint, region="us-east-1", **KEYS)
    for entry in place.layer(opendal.layers.RetryLayer(max_times=3)).list(prefix, recursive=True):
        if not entry.path.endswith("/"):
            path = target / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(place.read(entry.path))


def step(contender: str, endpoint: str, prefix: str, target: Path) -> tuple[float, float]:
    """Run one contender in a separate process; return seconds and processor seconds."""
    command = [sys.executable, __file__, "--contender", contender, endpoint, prefix, str(target)]
    env = dict(os.environ)
    if contender == "ours":
        command = [sys.executable, "-m", "trainer_core.fetch", "dataset"]
        told = {"STORAGE_URI": f"s3://bucket/{prefix}", "ENDPOINT": endpoint, "TARGET": str(target / "dataset")}
        told.update({name.upper(): value for name, value in KEYS.items()})
        env.update({f"TRAINJOB_INITIALIZE_{name}": value for name, value in told.items()})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(what: str, prefix: str, endpoint: str, folder: Path, rounds: int) -> float:
    """Print the medians of all, and return the ratio of ours to the fastest other."""
    size = sum(path.stat().st_size for path in (folder / "served" / prefix).rglob("*") if path.is_file())
    seen: dict[str, list[tuple[float, float]]] = {contender: [] for contender in CONTENDERS}
    for number in range(rounds):
        # The contender that runs first in one round runs last in another.
        for contender in (*CONTENDERS[number % 3 :], *CONTENDERS[: number % 3]):
            target = folder / "fetched"
            target.mkdir()
            seen[contender].append(step(contender, endpoint, prefix, target))
            came = sum(path.stat().st_size for path in target.rglob("*") if path.parent != target and path.is_file())
            if came != size:
                raise SystemExit(f"{contender} fetched {came} bytes of {size}")
            shutil.rmtree(target)
    medians = {
        who: tuple(statistics.median(column) for column in zip(*pairs, strict=True)) for who, pairs in seen.items()
    }
    for contender, (seconds, processor) in medians.items():
        print(
            f"{what:24} {contender:8} {seconds:7.2f} s {size / MB / seconds:8.1f} MB/s {processor:7.2f} s of processor"
        )
    ratio: float = medians["ours"][0] / min(medians[other][0] for other in CONTENDERS[1:])
    print(f"{what:24} ours takes {ratio:.2f} of the time of the fastest other", flush=True)
    return ratio


@contextmanager
def served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "s3_storage.static", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "fakes"), "PORT": "0"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield next(word for line in server.stdout or () for word in line.split() if word.startswith("http://"))
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="how many files of 16 KB; 0 for none")
    parser.add_argument("--large", type=int, default=512, help="MB of the large file; 0 for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contender:
        name, endpoint, prefix, target = asked.contender
        {"boto3": by_boto3, "opendal": by_opendal}[name](endpoint, prefix, Path(target))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(asked.files):
            path = folder / "served" / "small" / f"{number // 1000:03}" / f"{number:06}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SMALL))
        (folder / "served" / "large").mkdir(parents=True)
        with (folder / "served" / "large" / "one.bin").open("wb") as file:
            for _ in range(asked.large):
                file.write(os.urandom(MB))
        with served(folder / "served") as endpoint:
            # The server reads its files and adds up their etags before anybody is measured.
            urlopen(f"{endpoint}/bucket?list-type=2").read()  # noqa: S310 -- of the server just started
            if asked.files:
                compare(f"{asked.files} files of 16 KB", "small/", endpoint, folder, asked.rounds)
            if asked.large:
                compare(f"one file of {asked.large} MB", "large/", endpoint, folder, asked.rounds)


if __name__ == "__main__":
    main()
