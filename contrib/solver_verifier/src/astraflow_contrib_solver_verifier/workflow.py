"""The episode: an answer, then a check of it."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_contrib_solver_verifier.config import WorkflowConfig
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory


class SolverVerifier:
    """One sequence per policy: the solver's answer, and the answer that the verifier, who has read it,
    holds to be right."""

    def __init__(self, config: WorkflowConfig, context: ComponentContext) -> None:
        self._config = config
        known = (*context.run.policies, *context.run.engines)
        for policy in (config.solver, config.verifier):
            if policy not in known:
                raise PreflightError(
                    f"workflow 'solver_verifier' needs a policy {policy!r}; the run has {', '.join(known)}"
                )

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """An empty answer is rejected: there is nothing to check."""
        solver, verifier = engines[self._config.solver], engines[self._config.verifier]
        question = prompt.data.get("prompt")
        if not isinstance(question, str) or not question:
            raise WorkflowError(
                f"prompt {prompt.id!r}: workflow 'solver_verifier' expects data['prompt'] to be text, got "
                f"{question!r:.80}"
            )
        asked = solver.render(question)
        answered = await solver.generate(asked)
        answer = solver.completion(answered)
        if not answer.text:
            return None
        shown = verifier.render(
            self._config.template.replace("{prompt}", question).replace("{answer}", answer.text)
        )
        checked = await verifier.generate(shown)
        return Trajectory(
            sequences=(solver.sequence(asked, answered), verifier.sequence(shown, checked)),
            completions=(answer, verifier.completion(checked)),
        )
