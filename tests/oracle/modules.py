"""Modules with a training function, composed at random from what users write.

A `Case` is a function and some features. Each feature adds lines to the module, lines to the function, and one
expression whose value the function returns. A plain call decides what is right.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

#: Calls of builtins, and of a name that is none.
CALLS = {
    "max": "max([1, 3, 2])",
    "sum": "sum([1, 2])",
    "len": "len('abc')",
    "abs": "abs(-2)",
    "pow": "pow(2, 5)",
    "any": "any([0, 0])",
    "sorted": "sorted([2, 1])",
    "int": "int('7')",
    "round": "round(2.7)",
    "rate": "rate(1)",
}
#: How a module comes to a name of its own, each with the value that `CALLS` then have.
BINDINGS = {
    "none": "",
    "def": "def {name}(*given, **named):\n    return 'mine'\n",
    "lambda": "{name} = lambda *given, **named: 'mine'\n",
    "annotated": "{name}: object = lambda *given, **named: 'mine'\n",
    "import": "from shadows import mine as {name}\n",
    "star": "from stars import *\n",
    "conditional": "import sys\nif sys:\n    {name} = lambda *given, **named: 'mine'\n",
    "tried": "try:\n    from absent import {name}\nexcept ImportError:\n    def {name}(*given): return 'mine'\n",
    "loop": "for {name} in [lambda *given, **named: 'mine']:\n    pass\n",
    "walrus": "({name} := lambda *given, **named: 'mine')\n",
    "class": "class {name}:\n    def __new__(cls, *given, **named):\n        return 'mine'\n",
    "globals": "globals()['{name}'] = lambda *given, **named: 'mine'\n",
    "other function": "def bind():\n    global {name}\n    {name} = lambda *given, **named: 'mine'\nbind()\n",
    "the builtin itself": "from builtins import {builtin} as {name}\n",
    "deleted": "{name} = 1\ndel {name}\n",
}
#: Where a function uses a name: its lines and the expression that it returns.
USES = {
    "body": ("", "{call}"),
    "lambda": ("", "(lambda: {call})()"),
    "comprehension": ("", "[{call} for _ in range(1)]"),
    "generator": ("", "list({call} for _ in range(1))"),
    "f-string": ("", "f'{{{call!s}}}'"),
    "class body": ("class Inner:\n    value = {call}\n", "Inner.value"),
    "class attribute of its name": ("class Same:\n    {name} = {name}\n    value = {call}\n", "Same.value"),
    "method": ("class Inner2:\n    def run(self):\n        return {call}\n", "Inner2().run()"),
    "inner default": ("def inner(x={call}):\n    return x\n", "inner()"),
    "inner keyword default": ("def inner2(*, x={call}):\n    return x\n", "inner2()"),
    "inner decorator": ("@(lambda f, x={call}: lambda: x)\ndef inner3(): pass\n", "inner3()"),
    "evaluated annotation": ("def inner4(x: {call} = 0): pass\n", "inner4.__annotations__['x']"),
    "conditional": ("if True:\n    value5 = {call}\n", "value5"),
    "handler": ("try:\n    raise KeyError(1)\nexcept KeyError:\n    value6 = {call}\n", "value6"),
    "local of its name": ("def inner7():\n    {name} = len\n    return {name}('xy')\n", "inner7()"),
    "global then use": ("global {name}\n{name} = lambda *given: 'local'\n", "{call}"),
    "global if": ("global {name}\nif not True:\n    {name} = None\n", "{call}"),
    "global loop": ("global {name}\nfor {name} in ():\n    pass\n", "{call}"),
    "eval": ("", "eval({text!r})"),
    "exec": ("box8 = {{}}\nexec('box8[0] = ' + {text!r})\n", "box8[0]"),
    "globals": ("", "repr(globals().get('{name}', 'absent'))[:4]"),
    "vars": ("import sys\n", "repr(vars(sys.modules[__name__]).get('{name}'))[:4]"),
    "getattr": ("import sys\n", "repr(getattr(sys.modules[__name__], '{name}', 'absent'))[:4]"),
    "frame": ("import sys\n", "'{name}' in sys._getframe().f_globals"),
}
#: Features without a name: lines of the module, lines of the function, the expression.
PLAIN = {
    "quotes": ("", "", "\"it's\" + 'say \"hi\"' + '''a 'b' \"c\" '''"),
    "braces": ("", "x = 3\n", "['{{ ds }}', '{% raw %}', f'{x}{{}}', '{0}', '%s', '${HOME}', '$(id)']"),
    "unicode": ("", "größe = 'ü日本\\u2028'\n", "größe + '\\ufeff😀'"),
    "long text": ("", "text = '''at column 0\n is a line\n\tand tabs\t\n   '''\n", "text"),
    "continued": ("", "y = 1 + \\\n        2\n", "y"),
    "continued text": ("", "z = 'a\\\nb'\n", "z"),
    "semicolons": ("", "p = 1; q = 2; pass\n", "[p, q]"),
    "comment": ("", "# -*- coding: latin-1 -*-\n#) ]}\n", "'comment'"),
    "form feed": ("", "\x0c\nff = '\\x0c'\n", "ff"),
    "match": ("", "match [1, 2]:\n    case [a, *_]:\n        m = a\n", "m"),
    "walrus inside": ("", "", "[(w := 3), w + 1]"),
    "dataclass inside": (
        "",
        "from dataclasses import dataclass, fields\n@dataclass\nclass D:\n    a: int = 1\n",
        "[str(f.type) for f in fields(D)] + [D().a]",
    ),
    "class variable inside": (
        "",
        "import dataclasses as dc, typing\n@dc.dataclass\nclass C:\n    n: typing.ClassVar[int] = 1\n    a: int = 2\n",
        "len(dc.fields(C))",
    ),
    "nonlocal": ("", "n = 0\ndef add():\n    nonlocal n\n    n += 1\nadd()\n", "n"),
    "super inside": (
        "",
        "class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return [super().f(), __class__.__name__]\n",
        "B().f()",
    ),
    "import inside": (
        "",
        "import math, os.path as op\nfrom json import dumps as d\n",
        "[math.pi, op.join('a', 'b'), d([1])]",
    ),
    "dynamic import": ("", "import importlib\n", "importlib.import_module('json').dumps({1: 2})"),
    "numbers": ("", "", "[0.0, -0.0, 1, True, 1.0, 1e400, 10**30, 2j, {1, 2}, 'x' in {'y', 'x', 'z'}]"),
    "keys": ("", "", "{1: 'a', None: 2, True: 3, 0.5: 4, 'x': 5, (1, 2): 6}"),
    "empty": ("", "", "[None, '', [], {}, (), b'', ...]"),
    "logger": ("", "import logging\n", "logging.getLogger(__name__).level"),
    "own name": ("", "", "__name__"),
    "own file": ("", "import os\n", "os.path.basename(__file__)"),
    "own docs": ("'''Docs of the module.'''\n", "", "__doc__"),
    "own package": ("", "", "__package__"),
    "annotations": ("annotations = 'mine'\n", "", "str(annotations)"),
    "relative import": ("", "try:\n    from . import shadows as s\nexcept ImportError:\n    s = None\n", "s is None"),
    "attribute": ("@AFTER\ntrain.rate = 5\n", "", "getattr(train, 'rate', 'absent')"),
    "recursion": ("", "if depth > 0:\n    return [depth, train(depth=depth - 1)]\n", "depth"),
    "other of its name": ("@AFTER\nfirst, train = train, lambda *given, **named: 'other'\n@ENTRY first", "", "train()"),
    "counter": (
        "count = 5\n",
        "global count\ntry:\n    count += 1\nexcept NameError:\n    count = 'absent'\n",
        "count",
    ),
    "shadowed later": ("@AFTER\nmin = lambda *given: 'later'\n", "", "min(3, 2)"),
    "print": ("print = lambda *given: 'printed'\n", "", "str(print('x'))"),
    "secret helper": (
        "def helper(x=2):\n    return x * 3\n",
        "try:\n    h = helper()\nexcept NameError:\n    h = 'absent'\n",
        "h",
    ),
}
#: How the function is made: lines before its def, its def, lines after the module.
MAKERS = {
    "def": ("", "def train(depth=1):", "", 0),
    "one of two": ("def train(depth=1):\n    return 'first'\n", "def train(depth=1):", "", 0),
    "of two the first": (
        "",
        "def train(depth=1):",
        "kept = train\ndef train(depth=1):\n    return 'second'\n@ENTRY kept",
        0,
    ),
    "conditional": ("import sys\nif sys:", "def train(depth=1):", "else:\n    def train(depth=1): return 'else'\n", 1),
    "else": ("if not 1:\n    def train(depth=1): return 'if'\nelse:", "def train(depth=1):", "", 1),
    "tried": ("try:\n    raise KeyError\nexcept KeyError:", "def train(depth=1):", "", 1),
    "renamed": ("", "def _train(depth=1):", "train = _train\n", 0),
    "renamed in place": ("", "def train(depth=1):", "train.__name__ = train.__qualname__ = 'fit'\n", 0),
    "registered": ("def keep(f):\n    return f\n@keep\n@keep", "def train(depth=1):", "", 0),
    "marked": ("def mark(f):\n    f.mark = 1\n    return f\n@mark", "def train(depth=1):", "", 0),
    "wrapped": (
        "import functools\ndef wrap(f):\n    return functools.wraps(f)(lambda *a, **k: ['w', f(*a, **k)])\n@wrap",
        "def train(depth=1):",
        "",
        0,
    ),
    "wrapped by hand": (
        "import functools",
        "def train(depth=1):",
        "plain = train\ntrain = functools.wraps(plain)(lambda *a, **k: ['hand', plain(*a, **k)])\n",
        0,
    ),
    "wrapped in its text": (
        "@(lambda f: __import__('functools').wraps(f)(lambda *a, **k: ['text', f(*a, **k)]))",
        "def train(depth=1):",
        "",
        0,
    ),
    "wrapper replaced": (
        "@(lambda f: __import__('functools').wraps(f)(lambda *a, **k: ['text', f(*a, **k)]))",
        "def train(depth=1):",
        "raw = train.__wrapped__\ntrain = __import__('functools').wraps(raw)(lambda *a, **k: ['new', raw()])\n",
        0,
    ),
    "cached": ("import functools\n@functools.lru_cache(None)", "def train(depth=1):", "", 0),
    "static": ("class Trainer:\n    @staticmethod", "def train(depth=1):", "train = Trainer.train\n", 1),
    "made by a function": ("def make():", "def train(depth=1):", "    return train\ntrain = make()\n", 1),
    "default replaced": ("", "def train(depth=1):", "train.__defaults__ = (2,)\n", 0),
    "default removed": ("", "def train(*rest, depth=1):", "train.__kwdefaults__ = {'depth': 3}\n", 0),
    "default given": ("", "def train(depth):", "train.__defaults__ = (4,)\n", 0),
    "default of another type": ("", "def train(depth=1):", "train.__defaults__ = (True,)\n", 0),
    "default changed inside": ("", "def train(depth=1, seen=[1]):", "train.__defaults__[1].append(2)\n", 0),
    "defaults of all kinds": (
        "",
        "def train(depth=1, a=float('nan'), b=(1, 'x'), c={'k': [None]}, d=lambda: 3, *, e=-0.0, f={1, 2}, g=object):",
        "",
        0,
    ),
    "default from outside": ("RATE = 3\n", "def train(depth=RATE):", "RATE = 4\n", 0),
    "default of a shadowed name": ("abs = lambda x: 7\n", "def train(depth=abs(-2)):", "del abs\n", 0),
    "code replaced": (
        "",
        "def train(depth=1):",
        "def other(depth=1):\n    return 'other'\ntrain.__code__ = other.__code__\n",
        0,
    ),
    "annotated": (
        "from pathlib import Path\n",
        "def train(depth: int = 1, p: Path | None = None) -> 'Unknown':",
        "",
        0,
    ),
    "annotated with generics": ("", "def train(depth: int = 1, names: list[str] = ()) -> dict[str, int]:", "", 0),
    "one line": ("", "def train(depth=1): return ", "", None),
}
#: How the file is written: codec, cookie, newline, indentation, and what is added in front.
WRITINGS = {
    "utf-8": ("utf-8", "", "\n", "    ", ""),
    "cookie": ("latin-1", "# -*- coding: latin-1 -*-\n", "\n", "    ", ""),
    "cp1252": ("cp1252", "#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\n", "\n", "    ", ""),
    "bom": ("utf-8-sig", "", "\n", "    ", ""),
    "crlf": ("utf-8", "", "\r\n", "    ", ""),
    "cr": ("utf-8", "", "\r", "    ", ""),
    "tabs": ("utf-8", "", "\n", "\t", ""),
    "one space": ("utf-8", "", "\n", " ", ""),
    "future": ("utf-8", "from __future__ import annotations\n", "\n", "    ", ""),
    "other future": ("utf-8", "from __future__ import division, generator_stop\n", "\n", "    ", ""),
    "form feeds": ("utf-8", "", "\n", "    ", "\x0c\n"),
}


@dataclass(frozen=True)
class Case:
    """A module: how its function is made, how its file is written, and the names of its features."""

    maker: str = "def"
    writing: str = "utf-8"
    #: Keys of `PLAIN`, or (binding, name, use).
    features: tuple[str | tuple[str, str, str], ...] = ()

    def render(self) -> tuple[bytes, str]:
        """Return the bytes of the module's file and the name of its function."""
        codec, head, newline, indent, space = WRITINGS[self.writing]
        before, header, after, depth = MAKERS[self.maker]
        entry, module, body, results, ends, four = "train", "", "", [], "", "    "
        for feature in self.features:
            lines, inside, result = _expand(feature)
            module += lines.partition("@AFTER\n")[0]
            ends += lines.partition("@AFTER\n")[2]
            body += inside
            results.append(result)
        body += f"return [{', '.join(results)}]\n"
        if depth is None:
            function = f"{header}[{', '.join(results)}]\n"
        else:
            function = _indent(f"{header}\n{_indent(body, indent)}", indent * depth)
        text = (
            head
            + module
            + space
            + (f"{before.rstrip().replace(four, indent)}\n" if before else "")
            + function
            + after.replace(four, indent)
            + "\n"
            + ends
        )
        lines = text.split("\n")
        marks = [line for line in lines if line.startswith("@ENTRY ")]
        entry = marks[-1].split()[1] if marks else entry
        text = "\n".join(line for line in lines if not line.startswith("@ENTRY "))
        return text.replace("\n", newline).encode(codec, "replace"), entry

    @property
    def is_self_contained(self) -> bool:
        """Whether the function needs nothing of its module, so that its source is enough."""
        named = {each for each in self.features if isinstance(each, str)}
        shadowed = {each for each in self.features if not isinstance(each, str)}
        harmless = all(
            each[0] in _HARMLESS_BINDINGS and each[1] != "rate" and each[2] in _SELF_CONTAINED_USES for each in shadowed
        )
        return self.maker in _SELF_CONTAINED_MAKERS and named <= _SELF_CONTAINED and harmless

    def shrink(self) -> Iterator[Case]:
        """Yield smaller cases."""
        for index in range(len(self.features)):
            yield replace(self, features=self.features[:index] + self.features[index + 1 :])
        if self.maker != "def":
            yield replace(self, maker="def")
        if self.writing != "utf-8":
            yield replace(self, writing="utf-8")


#: Modules that others import.
HELPERS = {
    "shadows.py": "def mine(*given, **named):\n    return 'mine'\n",
    "stars.py": "".join(f"{name} = lambda *given, **named: 'mine'\n" for name in CALLS),
}


def draw(seed: int, count: int) -> list[Case]:
    """Return cases: each maker, writing, binding, use and feature at least once if there is room, then at random."""
    chance = random.Random(seed)  # noqa: S311 -- a seed to repeat the choices
    names, bindings, uses = list(CALLS), list(BINDINGS), list(USES)
    shadowed = [(binding, chance.choice(names), use) for binding, use in itertools.product(bindings, uses)]
    chance.shuffle(shadowed)
    # Each use first with a binding that matters.
    first = [(chance.choice(bindings[1:12]), chance.choice(names), use) for use in uses]
    first += [(binding, chance.choice(names), chance.choice(uses[:13])) for binding in bindings]
    queues = [list(MAKERS), list(WRITINGS), [*PLAIN, *first], shadowed]
    for queue in queues[:3]:
        chance.shuffle(queue)
    cases = [Case(maker=maker, features=("quotes", "long text")) for maker in queues[0]]
    cases += [Case(writing=writing, features=("unicode", "long text")) for writing in queues[1]]
    cases += [Case(features=(feature,)) for feature in queues[2]]
    chance.shuffle(cases)
    while len(cases) < count:
        features = [*chance.sample(list(PLAIN), chance.randrange(2)), *chance.sample(shadowed, chance.randrange(1, 3))]
        maker = chance.choice(["def", chance.choice(list(MAKERS))])
        cases.append(Case(maker, chance.choice(list(WRITINGS)), tuple(features)))
    return cases[:count]


def _expand(feature: str | tuple[str, str, str]) -> tuple[str, str, str]:
    if isinstance(feature, str):
        return PLAIN[feature]
    binding, name, use = feature
    call = CALLS[name]
    fields = {"name": name, "call": call, "text": call, "builtin": name if name != "rate" else "round"}
    body, result = USES[use]
    result = (
        f"f'{{{call}!s}}'".replace("'abc'", '"abc"').replace("'7'", '"7"')
        if use == "f-string"
        else result.format(**fields)
    )
    return BINDINGS[binding].format(**fields), body.format(**fields), result


def _indent(text: str, by: str) -> str:
    """Indent the lines of a text, but not those of its long strings."""
    lines, inside = [], False
    for line in text.split("\n"):
        lines.append(line if inside or not line or line == "\x0c" else by + line)
        inside ^= line.count("'''") % 2 == 1
    return "\n".join(lines)


_HARMLESS_BINDINGS = {"none", "the builtin itself", "deleted"}
_SELF_CONTAINED_USES = set(USES) - {"globals", "vars", "getattr", "frame", "global if", "global loop"}
_SELF_CONTAINED = {
    each
    for each in PLAIN
    if each not in {"own name", "own file", "own docs", "own package", "annotations", "relative import", "attribute"}
    and each not in {"other of its name", "counter", "shadowed later", "print", "secret helper"}
}
_SELF_CONTAINED_MAKERS = {
    *("def", "one of two", "conditional", "else", "tried", "renamed", "renamed in place", "registered", "marked"),
    *("wrapped in its text", "static", "made by a function", "defaults of all kinds", "annotated"),
    *("annotated with generics", "one line"),
}
