"""Stands for a sandbox where it does not matter how programs are run."""

from __future__ import annotations

import re

from astraflow_sandbox.code_runner import ProgramResult


class PrintsOnly:
    """Runs programs that print a number. ``ran`` has them all."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """See :class:`astraflow_sandbox.code_runner.CodeRunner`."""
        self.ran.append((program, stdin))
        found = re.fullmatch(r"print\((\d+)\)\s*", program)
        if found is None:
            return ProgramResult(1, "", "SyntaxError: invalid syntax\n", "exited")
        return ProgramResult(0, f"{found[1]}\n", "", "exited")
