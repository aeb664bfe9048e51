"""The program of an initializer step: fetches what the environment variables name and returns an exit code.

The role is the argument or ``TRAINJOB_INITIALIZE_ROLE``; `settings.FetchSettings` lists the variables that name the
source. The destination:

* With ``TRAINJOB_INITIALIZE_CACHE``: a folder of that cache, which jobs share; ``TRAINJOB_INITIALIZE_TARGET`` becomes a
  symbolic link to it. All users can read it, unless ``TRAINJOB_INITIALIZE_PRIVATE`` is set.
* Without a cache: the folder ``TRAINJOB_INITIALIZE_TARGET``, readable by all users; by default ``/workspace/dataset``
  or ``/workspace/model``, as in Trainer's initializers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_core.base.text import shorten
from trainer_core.fetch import cache, schemes
from trainer_core.fetch.progress import create_progress
from trainer_core.fetch.settings import ENV_PREFIX, ROLES, FetchSettings
from trainer_core.fetch.source import FetchError
from trainer_core.node import env, files

_FAILED = 1
#: Characters of a failure.
_MAX_LINE = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    role = _parse_role(arguments)
    try:
        print(f"{role}: {_fetch(FetchSettings.from_env(role, os.environ))}", flush=True)
    except FetchError as error:
        return _report_failure(f"{role}: {error}", env.TRY_AGAIN if error.retryable else _FAILED)
    except OSError as error:
        return _report_failure(f"{role}: {type(error).__name__}: {error}", _FAILED)
    return 0


def _parse_role(arguments: Sequence[str] | None) -> str:
    parser = argparse.ArgumentParser(prog="python -m trainer_core.fetch", description=__doc__)
    default = os.environ.get(ENV_PREFIX + "ROLE")
    # argparse does not check the default of an optional argument against its choices.
    parser.add_argument("role", choices=ROLES, nargs=None if default not in ROLES else "?", default=default)
    return str(parser.parse_args(arguments).role)


def _fetch(settings: FetchSettings) -> str:
    source = schemes.create_source(settings)
    progress = create_progress(settings.role)
    cache_folder, target = os.environ.get(ENV_PREFIX + "CACHE"), os.environ.get(ENV_PREFIX + "TARGET")
    if not cache_folder:
        folder = Path(target or env.DEFAULTS[getattr(env, f"{settings.role.upper()}_PATH")])
        fetched = cache.fetch_to_folder(source, folder, progress)
        return f"{settings.uri} {'fetched into' if fetched else 'found in'} {folder}"
    private = bool(os.environ.get(ENV_PREFIX + "PRIVATE"))
    if private:
        # Parent folders that are created on the way are private, too.
        os.umask(0o077)
    folder, fetched = cache.fetch_to_cache(source, Path(cache_folder), progress, private)
    if target:
        cache.replace_symlink(Path(target), folder)
    return f"{settings.uri} {'fetched into' if fetched else 'found in'} {folder}"


def _report_failure(line: str, code: int) -> int:
    """Write the error as the last line of the log and, if the step has one, as its termination message."""
    # Names of files may contain line ends and escape sequences of terminals.
    line = shorten(line, _MAX_LINE)
    print(line, file=sys.stderr, flush=True)
    log = Path(env.setting(env.TERMINATION_LOG))
    if log.parent.is_dir() and (log.exists() or os.environ.get(env.TERMINATION_LOG)):
        try:
            files.write(log, line.encode("utf-8", "replace")[: env.RECORD_LIMIT])
        except OSError as error:
            print(f"{log} could not be written: {error}", file=sys.stderr)
    return code
