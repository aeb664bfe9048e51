"""The first program in a container: unpacks the files in its arguments and runs `launch`.

It is sent as text, ``python3 -c <this file> <launch> <chunk>...``: only the standard library exists at this point, and
only ASCII is safe in every locale. The chunks are one base64 text, cut because the length of one argument is limited:
the compressed path and text of each file, with NUL between them.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python puts the working directory first, where a user's random.py would shadow the standard library.
    sys.path = [entry for entry in sys.path if entry]

import base64
import json
import os
import signal
import tempfile
import zlib


def main(launch: str, chunks: list[str]) -> None:
    """Unpack the files and run the launcher among them."""
    # The kernel delivers SIGTERM to PID 1 only if there is a handler.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    texts = iter(zlib.decompress(base64.b64decode("".join(chunks))).decode("utf-8").split("\0"))
    try:
        folder = unpack({path: next(texts) for path in texts})
    except OSError as error:
        fail(f"the training code cannot be unpacked ({error}); mount an emptyDir volume at /tmp")
    sys.path.insert(0, folder)
    from trainer_core.node import launch as launcher

    launcher.main(launch, folder)


def unpack(files: dict[str, str]) -> str:
    """Write the files into a new private folder; return its path."""
    old_umask = os.umask(0o077)
    try:
        folder = tempfile.mkdtemp(prefix="trainjob-")
        for name, text in files.items():
            path = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
    finally:
        os.umask(old_umask)
    return folder


def fail(message: str) -> None:
    """Exit, and report the error in the format of `termination`, which is not unpacked yet."""
    record = {"error": {"type": "trainjob.UnpackError", "message": message, "traceback": "", "rank": 0}}
    try:
        with open(os.environ.get("TRAINJOB_TERMINATION_LOG") or "/dev/termination-log", "w", encoding="ascii") as file:
            json.dump(record, file)
    finally:
        sys.exit(f"trainjob: {message}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
