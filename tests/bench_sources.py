"""What a benchmark is made of, for the tests of benchmarks that take turns."""

from __future__ import annotations

import re

import pytest
from workspace import ROOT

_MODULE = re.compile(r"\bbench((?:\.\w+)+)")


def of(benchmark: str) -> pytest.MarkDecorator:
    """The mark of a test of this benchmark, with the modules in ``bench/`` that it imports or starts."""
    waiting, found = [f"bench/{benchmark}.py"], set[str]()
    while waiting:
        if (file := waiting.pop()) not in found:
            found.add(file)
            text = (ROOT / file).read_text(encoding="utf-8")
            names = [f"bench{name.replace('.', '/')}" for name in _MODULE.findall(text)]
            files = [f"{name}{end}" for name in names for end in (".py", "/__init__.py")]
            waiting += [each for each in files if (ROOT / each).is_file()]
    return pytest.mark.turns("tests/bench_sources.py", "tests/conftest.py", *sorted(found))
