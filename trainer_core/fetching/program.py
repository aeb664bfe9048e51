"""The program of an initializer step: environment → a folder with the data, an exit code, and one line.

The role is the argument, or `TRAINJOB_INITIALIZE_ROLE`. What to fetch is in `settings.Settings`. Where to:

* ``TRAINJOB_INITIALIZE_CACHE`` and ``TRAINJOB_INITIALIZE_TARGET``: fetched into the cache, which jobs share, and the
  target becomes a link to it. Everybody can read it, unless ``TRAINJOB_INITIALIZE_PRIVATE`` is set.
* Without a cache the target itself becomes a folder with the data that everybody can read; by default
  ``/workspace/dataset`` or ``/workspace/model``, as with Trainer's initializers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_core.fetching import progress, schemes, store
from trainer_core.fetching.settings import PREFIX, ROLES, Settings
from trainer_core.fetching.source import FetchError
from trainer_core.inside import contract, files

__all__ = ["main"]

_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the environment says.

    Returns:
        0 when the data is in place; `contract.TRY_AGAIN` when a retry can help, 1 when only a person can.
    """
    role = _role(arguments)
    try:
        print(f"{role}: {_fetch(Settings.from_env(role, os.environ))}", flush=True)
    except FetchError as error:
        return _failed(f"{role}: {error}", contract.TRY_AGAIN if error.retryable else _FAILED)
    except OSError as error:
        return _failed(f"{role}: {type(error).__name__}: {error}", _FAILED)
    return 0


def _role(arguments: Sequence[str] | None) -> str:
    parser = argparse.ArgumentParser(prog="python -m trainer_core.fetching", description=__doc__)
    given = os.environ.get(PREFIX + "ROLE")
    # An argument that may be left out is checked by argparse only where it is given.
    parser.add_argument("role", choices=ROLES, nargs=None if given not in ROLES else "?", default=given)
    return str(parser.parse_args(arguments).role)


def _fetch(settings: Settings) -> str:
    source = schemes.source(settings)
    report = progress.reporter(settings.role)
    cache, target = os.environ.get(PREFIX + "CACHE"), os.environ.get(PREFIX + "TARGET")
    if not cache:
        place = Path(target or contract.DEFAULTS[getattr(contract, f"{settings.role.upper()}_PATH")])
        fetched = store.fetch_into(source, place, report)
        return f"{settings.uri} {'fetched into' if fetched else 'found in'} {place}"
    private = bool(os.environ.get(PREFIX + "PRIVATE"))
    if private:
        # Whatever is made here is for this user only, also the folders in between.
        os.umask(0o077)
    where, fetched = store.fetch(source, Path(cache), report, private)
    if target:
        store.point(Path(target), where)
    return f"{settings.uri} {'fetched into' if fetched else 'found in'} {where}"


def _failed(line: str, code: int) -> int:
    """Say why where a backend looks: at the end of the log, and in the termination message where there is one."""
    print(line, file=sys.stderr, flush=True)
    log = Path(contract.setting(contract.TERMINATION_LOG))
    if log.parent.is_dir() and (log.exists() or os.environ.get(contract.TERMINATION_LOG)):
        try:
            files.write(log, line.encode("utf-8", "replace")[: contract.RECORD_LIMIT])
        except OSError as error:
            print(f"{log} could not be written: {error}", file=sys.stderr)
    return code
