"""What every test may rely on."""

from __future__ import annotations

import signal

# A shell that starts the suite in the background hands down an ignored SIGINT, and so would we to every process of a
# test: Ctrl-C would do nothing there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
