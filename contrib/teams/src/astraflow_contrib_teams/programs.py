"""Programs against tests, in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow_contrib_teams.replies import ProgramTest
from astraflow_sandbox.code_runner import CodeRunner, ProgramResult

SHOWN = 500
"""Characters of each text that a report shows."""


@dataclass(frozen=True, slots=True)
class FailedTest:
    """The first test that a program did not pass."""

    case: ProgramTest
    result: ProgramResult

    @property
    def report(self) -> str:
        """What happened, for the author of the program."""
        result = self.result
        got = f"Its output:\n{result.stdout[:SHOWN]}"
        if result.ending != "exited":
            why = {"cpu": "ran too long", "deadline": "did not end", "output": "wrote too much"}
            got = f"It {why[result.ending]}."
        elif result.code:
            got = f"It failed with exit code {result.code}:\n{result.stderr[-SHOWN:]}"
        return f"Input:\n{self.case.input[:SHOWN]}\nExpected output:\n{self.case.output[:SHOWN]}\n{got}"


async def first_failure(
    runner: CodeRunner, program: str, cases: Iterable[ProgramTest]
) -> FailedTest | None:
    """Run ``program`` on one test after the other, until it fails one."""
    for case in cases:
        result = await runner.run(program, case.input)
        if not (result.succeeded and _lines(result.stdout) == _lines(case.output)):
            return FailedTest(case, result)
    return None


def _lines(text: str) -> list[str]:
    """Lines without the white space at their ends, as judges of programming contests compare them."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
