"""One training definition for every orchestrator: the public names of the core.

`__init__.pyi` lists them. Each is loaded on first use: a training process that imports only `progress`, and the
supervisor of a local job, do not pay for the client.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
