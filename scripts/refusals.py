"""Records where ``Refused`` is raised, to find errors that no test provokes."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

from workspace import ROOT, nodes_of

from astraflow_core.errors import Refused


class Refusals:
    """File and lines of each ``Refused`` that was made since."""

    def __init__(self) -> None:
        self._lines: dict[str, set[int]] = defaultdict(set)
        self._plain = Refused.__init__

    def begin(self) -> None:
        """Note them from now on."""
        lines, plain = self._lines, self._plain

        def noted(error: Refused, status: int, reason: str) -> None:
            caller = sys._getframe(1)
            lines[caller.f_code.co_filename].add(caller.f_lineno)
            plain(error, status, reason)

        Refused.__init__ = noted  # type: ignore[method-assign, assignment]

    def end(self) -> None:
        """Note no more."""
        Refused.__init__ = self._plain  # type: ignore[method-assign]

    def never_raised(self, folder: Path) -> list[str]:
        """Where the modules of a folder raise a refusal that was not seen."""
        return [
            f"{file.relative_to(ROOT)}:{node.lineno}"
            for file in sorted(folder.rglob("*.py"))
            for node in nodes_of(file)
            if isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.func) == "Refused"
            and not self._lines[str(file)] & {*range(node.lineno, (node.end_lineno or 0) + 1)}
        ]
