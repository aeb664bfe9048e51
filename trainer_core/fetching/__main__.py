"""`python -m trainer_core.fetching [dataset|model]`: the program of an initializer step."""

from __future__ import annotations

import sys

from trainer_core.fetching.program import main

sys.exit(main())
