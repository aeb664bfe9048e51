"""`python -m trainer_core.fetching [dataset|model]`: the program of an initializer step."""

from __future__ import annotations

import os
import signal
import sys

from trainer_core.fetching.program import main

if os.getpid() == 1:
    # The first process of a container is not ended by this signal unless it says so. What came so far is kept.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
sys.exit(main())
