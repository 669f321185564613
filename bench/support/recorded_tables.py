"""Tables of recorded figures within a page: between ``<!-- recorded: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

Recorded = Mapping[str, float | str]
_BLOCK = re.compile(r"(<!-- recorded: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled_with(text: str, found: Recorded, tables: Mapping[str, Callable[[Recorded], str]]) -> str:
    """The page with its tables again. KeyError for a table that there is not."""
    place = f"Recorded {found['date']} on {found['cores']} cores, Python {found['python']}:\n\n"
    return _BLOCK.sub(
        lambda block: block[1] + place + tables[block[2]](found) + "\n" + block[3], text
    )


def figures_in(file: Path) -> dict[str, float | str]:
    """The figures of the last whole run of a benchmark."""
    figures: dict[str, float | str] = json.loads(file.read_text(encoding="utf-8"))
    return figures
