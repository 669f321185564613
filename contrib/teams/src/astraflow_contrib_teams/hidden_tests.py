"""Reward ``hidden_tests``: a program passes tests that no role was shown."""

from __future__ import annotations

from astraflow_contrib_teams.config import HiddenTestsConfig
from astraflow_contrib_teams.programs import first_failure
from astraflow_contrib_teams.replies import as_cases, last_block, visible
from astraflow_core.errors import WorkflowError
from astraflow_core.types import ComponentContext, TrajectoryView
from astraflow_sandbox.code_runner import CodeRunner


class HiddenTests:
    """1 if the program in the last completion passes every test of the prompt, else 0, for all roles: the reward of the
    code workflows of the paper of AstraFlow (appendix 6.3). A test is an input and the output that must come, compared line
    by line without the white space at their ends."""

    def __init__(
        self,
        config: HiddenTestsConfig,
        context: ComponentContext,
        runner: CodeRunner | None = None,
    ) -> None:
        self._key = config.tests_key
        self._runner = runner or config.sandbox.runner()

    async def score(self, view: TrajectoryView) -> float:
        """0 or 1."""
        given = view.data.get(self._key)
        cases = as_cases(given)
        if not isinstance(given, list) or not given or len(cases) < len(given):
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'hidden_tests' needs data[{self._key!r}] to be a list of "
                f"{{'input': text, 'output': text}}, found {given!r:.80}"
            )
        program = last_block(visible(view.text))
        if program is None:
            return 0.0
        return float(await first_failure(self._runner, program, cases) is None)
