"""Each block of Python in a document can be pasted: it imports or defines all that it names."""

from __future__ import annotations

import builtins
import re
import symtable
from collections.abc import Iterator

import pytest
from workspace import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# The cells of a tutorial follow each other; test_tutorials.py runs them.
GUIDES += [page for page in PAGES if not page.name.startswith("tutorial-")]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FUTURE = "from __future__ import annotations\n"


def unbound(block: str) -> set[str]:
    """Names that a block reads and neither binds nor imports, annotations included."""
    module = symtable.symtable(block.replace(FUTURE, ""), "block", "exec")

    def read(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table is module):
                yield symbol.get_name()
        for child in table.get_children():
            yield from read(child)

    bound = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    return set(read(module)) - bound - vars(builtins).keys()


BLOCKS = [
    pytest.param(block, id=f"{file.name}-{number}")
    for file in GUIDES
    for number, block in enumerate(BLOCK.findall(file.read_text(encoding="utf-8")), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_binds_what_it_names(block: str) -> None:
    missing = sorted(unbound(block))
    assert not missing, f"import or define {', '.join(missing)} in the block, or include all of it"


def test_a_name_that_nothing_binds_is_found() -> None:
    block = """
    import numpy as np

    def one(first: Path, *, second=None) -> Answer:
        local = np.zeros(len(first))
        return [replace(each, second) for each in local]

    class Two(Base):
        size = one

        def three(self):
            return self.size + LIMIT
    """
    text = re.sub("^    ", "", block, flags=re.MULTILINE)
    assert unbound(text) == {"Path", "Answer", "replace", "Base", "LIMIT"}
    assert unbound(FUTURE + text) == unbound(text)
