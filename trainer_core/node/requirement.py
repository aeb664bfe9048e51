"""Options behind a requirement: ``name==1.0 --index-url=https://host/simple --hash=sha256:…``."""

import re

#: The only index that it comes from.
INDEX = re.compile(r"\s--index-url=(\S+)")
#: What one of its files must be.
HASH = re.compile(r"\s--hash=\S+")


def strip_options(requirement: str) -> str:
    """Return a requirement without its index and hashes, as people read it."""
    return INDEX.sub("", HASH.sub("", requirement))
