"""`python -m trainer_core.fetch [dataset|model]`: the program of an initializer step."""

from __future__ import annotations

import os
import signal
import sys

from trainer_core.fetch.program import main

if os.getpid() == 1:
    # The kernel delivers SIGTERM to PID 1 only if there is a handler. Files fetched so far are kept for the next start.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
sys.exit(main())
