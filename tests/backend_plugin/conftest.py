from __future__ import annotations

# The tests of the example distribution, which `test_backend_plugin.py` runs where it is installed.
collect_ignore = ["distribution"]
