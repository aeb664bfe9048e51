"""Options: callables that change one TrainJob before it is submitted.

`__init__.pyi` lists them. The module of each is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
