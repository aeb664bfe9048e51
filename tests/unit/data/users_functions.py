"""Training functions as users write them: everything a shell, a template or a careless dedent would damage."""

import functools
import math
from pathlib import Path
from typing import Any, Dict, Optional, Union


def quotes():
    return ['"', "'", """a "quoted" 'word'""", '''triple "''' + "'''", "it's", 'say "hi"']


def dollars():
    return ["$HOME", "pa$$word", "${lr}", "$(id)", f"cost ${1 + 1}", r"\$x", "$", "$1 $@ $#"]


def backticks():
    return ["`id`", "a`b`c", "```python\nx\n```", "`"]


def backslashes():
    return ["\\b", "\b", r"\n", "\\\\", "a\
b", "\x00\x1b[0m", "\N{GREEK SMALL LETTER ALPHA}"]


def heredoc():
    text = """
EOM
EOF
'EOM'
"""
    return text


def templates():
    return ["{{ ds }}", "{% raw %}", "%s %(x)s", "{0}", "{}"]


def unicode():
    größe = "größe"
    return [größe, "日本語", "😀", "e\u0301", "\u2028|\u2029|\x85", "‮right-to-left", "\ufeff"]


def tabs():
	if True:
		text = "a	tab"
		return [text, """	indented
		by tabs	"""]


def odd_whitespace():
    text = """first
    
	
trailing   
    indented
  """
    return text


def form_feed():
    before = "\x0c"

    return [before, ""]


def decorators_inside():
    import functools

    def twice(function):
        @functools.wraps(function)
        def wrapper(*args):
            return [function(*args), function(*args)]

        return wrapper

    @twice
    @functools.lru_cache(maxsize=None)
    def inner(x):
        return x + 1

    return inner(1)


def type_hints(
    lr: float = 0.1,
    path: Optional[Path] = None,
    extra: Dict[str, Any] = {},
    *rest: Union[int, "Unknown"],
    flag: "bool" = True,
) -> Dict[str, Optional[Path]]:
    import typing

    count: int = 3
    values: typing.List[int] = [1]

    def helper(x: Path) -> Path:
        return x

    return {"lr": lr, "count": count, "values": values, "helped": helper("x"), "flag": flag}


def modern_syntax():
    if (n := 3) > 2:
        n += 1
    match_ = {"a": 1, **{"b": 2}}
    nested = f"{'a' + f'{n:>{4}}'!r:>10}"
    return [n, match_, nested, [x for x in range(3) if x], {**{"k": lambda: 1}}["k"]()]


def classes_inside():
    class Base:
        size: int = 3
        double = size * 2

        def name(self):
            return __class__.__name__ + type(self).__name__

    class Net(Base):
        def name(self):
            return super().name()

    return [Net().name(), Net.double]


def scopes():
    total = 0

    def add(x):
        nonlocal total
        total += x

    for i in range(3):
        add(i)
    global shared_counter
    shared_counter = 5
    return [total, shared_counter, [total * i for i in range(2)], len({i for i in "ab"})]


def calls_itself(n=3):
    return 1 if n < 2 else n * calls_itself(n - 1)


def comment_like_a_cookie():
    # -*- coding: latin-1 -*-
    return "grün"


def semicolons(): return ["one line"]; pass


def defaults(a=1, b="x", *, c=(1, 2), d=float("1.5"), e={"k": [None, True]}, f=-1):
    return [a, b, c, d, e, f]


def make_nested():
    if True:

        def nested():
            text = """at column 0
is a line
        and an indented one
            """
            return [text, """
"""]

        return nested


nested = make_nested()


def registered(function):
    return function


@registered
@registered
def in_a_registry():
    return "as it is"


@(
    registered
)
# A comment between the decorators and the function.
@functools.partial(
    lambda function, note: function,
    note="@",
)
def under_long_decorators():
    """Docs."""
    return "as it is"


WORKING = [
    quotes, dollars, backticks, backslashes, heredoc, templates, unicode, tabs, odd_whitespace, form_feed,
    decorators_inside, type_hints, modern_syntax, classes_inside, scopes, calls_itself, comment_like_a_cookie,
    semicolons, defaults, nested, in_a_registry, under_long_decorators,
]


# ---- what source cannot carry -------------------------------------------------------------------------------

RATE = 0.1


def wrapping(function):
    @functools.wraps(function)
    def wrapper():
        return function()

    return wrapper


def hiding(function):
    def wrapper():
        return function()

    return wrapper


def make_closure():
    rate, unit = 0.1, "s"

    def closure():
        return [rate, unit]

    return closure


closure = make_closure()
a_lambda = lambda: 1


def uses_globals():
    def inner():
        return [math.pi for _ in range(2)]

    return [RATE, inner(), wrapping]


def misspelt():
    return prnt("x")


def default_from_outside(rate=RATE):
    return rate


def keyword_default_from_outside(*, key=str(RATE)):
    return key()


@wrapping
def decorated():
    return 1


@hiding
def hidden():
    return 1


@functools.lru_cache(maxsize=None)
def cached():
    return 1


def under():
    return 1


wrapped_by_hand = functools.wraps(under)(lambda: under())


def class_from_outside():
    class Mine(Path):
        pass

    return str(Mine)


def annotated_class_inside():
    class Batch:
        x: Path = None

    return Batch.x


class Trainer:
    def method(self):
        return 1

    def __call__(self):
        return 1

    @staticmethod
    def static():
        return "static"


async def asynchronous():
    return 1


def generator():
    yield 1


async def asynchronous_generator():
    yield 1
