"""Reward ``code_tests``: how many of the prompt's tests the program in a completion passes."""

from __future__ import annotations

import asyncio
import secrets

from astraflow_contrib_code import harness
from astraflow_contrib_code.cases import CallCase, Case, CheckCase, TextCase, read_cases, same
from astraflow_contrib_code.config import CodeTestsConfig
from astraflow_contrib_code.programs import last_block
from astraflow_core.errors import WorkflowError
from astraflow_core.types import ComponentContext, TrajectoryView
from astraflow_sandbox.code_runner import CodeRunner, ProgramResult, SandboxFailed


class CodeTests:
    """The share of tests that the program of the last completion passes, for all policies; with ``score = "all"`` 1 if it
    passes all of them, else 0. A program that the machine was too busy to run to its end fails the episode, which is tried
    again, and earns nothing."""

    def __init__(
        self,
        config: CodeTestsConfig,
        context: ComponentContext,
        runner: CodeRunner | None = None,
    ) -> None:
        self._config = config
        self._runner = runner or config.sandbox.runner()

    async def score(self, view: TrajectoryView) -> float:
        """From 0 to 1."""
        key = self._config.tests_key
        try:
            cases = read_cases(view.data.get(key))
        except (TypeError, ValueError) as error:
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'code_tests' cannot read data[{key!r}]: {error}"
            ) from error
        program = self._program(view)
        if program is None:
            return 0.0
        passed = await self._passed(program, cases)
        if self._config.score == "all":
            return float(passed == len(cases))
        return passed / len(cases)

    def _program(self, view: TrajectoryView) -> str | None:
        if not view.completions:
            return None
        text = view.completions[-1].text
        if self._config.program == "block":
            return last_block(text)
        given = view.data.get("program", view.data.get("prompt"))
        if not isinstance(given, str):
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'code_tests' with program = \"completion\" needs data['program'] or "
                f"data['prompt'] to be the text before the completion, found {given!r:.80}"
            )
        return given + text

    async def _passed(self, program: str, cases: list[Case]) -> int:
        """How many tests pass. Calls of functions share a process; the others have one each."""
        called = [case for case in cases if isinstance(case, CallCase)]
        running = [self._of_calls(program, called)] if called else []
        running += [self._of_text(program, case) for case in cases if isinstance(case, TextCase)]
        running += [self._of_check(program, case) for case in cases if isinstance(case, CheckCase)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in running]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def _of_text(self, program: str, case: TextCase) -> int:
        result = await self._run(program, case.given)
        return int(result.succeeded and case.passes(result.stdout))

    async def _of_calls(self, program: str, cases: list[CallCase]) -> int:
        """One process for all calls; where it ends at one of them, another for those behind."""
        source, passed, at = harness.program_of_calls(program), 0, 0
        while at < len(cases):
            rest = cases[at:]
            given = harness.calls([(case.function, case.arguments) for case in rest])
            result = await self._run(source, given)
            values = harness.results(result.stdout)
            if values is None:
                return passed  # the program did not get as far as to a call
            passed += sum(
                same(value, case.expected) for value, case in zip(values, rest, strict=False)
            )
            if result.ending != "exited":
                return passed  # each of the others could use up its time again
            at += len(values) + 1
        return passed

    async def _of_check(self, program: str, case: CheckCase) -> int:
        token = secrets.token_hex(16)
        result = await self._run(harness.program_of_check(program, case.source, token))
        return int(result.succeeded and result.stdout == f"{token}\n")

    async def _run(self, program: str, given: str = "") -> ProgramResult:
        result = await self._runner.run(program, given)
        if result.starved:
            raise SandboxFailed(
                f"a program waited {result.waited_s:.1f} s for a processor and ran {result.cpu_s:.1f} s until its deadline: the "
                "machine is too busy to judge it (raise sandbox.deadline_s, or lower [raas] max_concurrent_episodes)"
            )
        return result
