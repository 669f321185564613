"""Workflow ``taught``: an episode, and the log-probs that a teacher gives what was sampled in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from astraflow_contrib_distillation.config import TaughtConfig
from astraflow_contrib_distillation.replay import Recorder, given_prompt, replayed
from astraflow_core.component import Kind
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.nested import build_component
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, GenerateResult, Prompt, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_core.types.trajectory import NOT_SAMPLED

Floats = npt.NDArray[np.float32]


class Taught:
    """Plays an episode of another workflow; then an engine of the run, the teacher, scores the tokens that the policy
    sampled, and each sequence gets its ``teacher_logprobs``. The algorithm ``opd`` learns from these.

    A prompt's source names its teacher. With ``given`` the teacher reads more than the policy did: the workflow is played
    once more with that prompt and the same completions, and the teacher scores them there. The teacher may then be the
    policy itself (self-distillation, as in SDFT, arXiv 2601.19897, and TRL 1.16.0). Teacher and policy have one tokenizer,
    and sampling has temperature 1, or 0 in an evaluation.
    """

    def __init__(self, config: TaughtConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = _policy(config, context)
        self._teachers = tuple(dict.fromkeys([*config.teachers.values(), config.teacher or ""]))
        self._teachers = tuple(name for name in self._teachers if name)
        known = (*context.run.policies, *context.run.engines)
        for name in self._teachers:
            if name not in known:
                raise UserError(
                    f"workflow 'taught': teacher {name!r} is not an engine of the run, which has {', '.join(map(repr, known))}; "
                    f"add [engines.{name}]"
                )
            if name == self._policy and not config.given:
                raise UserError(
                    f"workflow 'taught': policy {name!r} cannot teach itself what it knows; set given, or name another "
                    "teacher"
                )
        self._workflow = build_component(Kind.WORKFLOW, config.workflow, context)
        self._checked = False

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode and have it scored."""
        self._check(engines)
        teacher = engines[self._teacher_of(prompt)]
        made: dict[str, list[GenerateResult]] = {name: [] for name in engines}
        played = engines
        if self._config.given:
            played = {name: Recorder(engine, made[name]) for name, engine in engines.items()}
        trajectory: Trajectory | None = await self._workflow.run_episode(played, prompt)
        if trajectory is None:
            return None
        read = trajectory
        if self._config.given:
            given = given_prompt(prompt, self._config.given)
            read = await replayed(self._workflow, engines, made, given)
            self._check_same(trajectory, read, prompt)
        scored = await asyncio.gather(
            *(
                _scored(teacher, own, shown)
                for own, shown in zip(trajectory.sequences, read.sequences, strict=True)
                if own.policy == self._policy
            )
        )
        rest = iter(scored)
        sequences = tuple(
            replace(own, teacher_logprobs=next(rest)) if own.policy == self._policy else own
            for own in trajectory.sequences
        )
        return self._rewarded(replace(trajectory, sequences=sequences))

    def _teacher_of(self, prompt: Prompt) -> str:
        source = prompt.data.get("source")
        name = self._config.teachers.get(str(source), self._config.teacher)
        if name is None:
            raise UserError(
                f"workflow 'taught': there is no teacher for prompt {prompt.id!r} of source {source!r}; teachers has "
                f"{', '.join(map(repr, self._config.teachers))}: add the source, or set teacher for all others"
            )
        return name

    def _check(self, engines: Mapping[str, PolicyEngine]) -> None:
        """:class:`UserError` for a teacher of other tokens or a temperature that the log-probs are not of."""
        if self._checked:
            return
        student = engines[self._policy]
        for name in self._teachers:
            if engines[name].tokenizer.fingerprint != student.tokenizer.fingerprint:
                raise UserError(
                    f"workflow 'taught': teacher {name!r} has another tokenizer than policy {self._policy!r}, so it cannot "
                    "score its tokens; name a teacher with the same tokenizer, as models of one family have"
                )
        temperature = student.sampling.temperature
        if temperature not in (0.0, 1.0):
            raise UserError(
                f"workflow 'taught': sampling.temperature is {temperature:g}, and a teacher scores at 1; set it to 1"
            )
        self._checked = temperature > 0

    def _check_same(self, played: Trajectory, read: Trajectory, prompt: Prompt) -> None:
        same = len(played.sequences) == len(read.sequences) and all(
            one.policy == other.policy and np.array_equal(_sampled(one), _sampled(other))
            for one, other in zip(played.sequences, read.sequences, strict=True)
        )
        if not same:
            raise WorkflowError(
                f"with the prompt that the teacher is given, the episode of prompt {prompt.id!r} has other sampled tokens; "
                "leave `given` out for a workflow that acts on its prompt"
            )

    def _rewarded(self, trajectory: Trajectory) -> Trajectory:
        if self._config.reward == "run":
            return trajectory
        gaps = [_gap(each) for each in trajectory.sequences if each.policy == self._policy]
        gap = np.concatenate(gaps) if gaps else np.zeros(0)
        agreement = float(gap.mean()) if len(gap) else 0.0
        policies = dict.fromkeys(each.policy for each in trajectory.sequences)
        return replace(trajectory, rewards=dict.fromkeys(policies, agreement))


def _policy(config: TaughtConfig, context: ComponentContext) -> str:
    policies = context.run.policies
    if config.policy in policies:
        return str(config.policy)
    if config.policy is None and len(policies) == 1:
        return policies[0]
    raise UserError(
        f"workflow 'taught': policy is {config.policy!r}, and the run has {', '.join(map(repr, policies))}; say which is "
        "taught"
    )


def _sampled(sequence: TokenSequence) -> npt.NDArray[np.int32]:
    sampled: npt.NDArray[np.int32] = sequence.tokens[sequence.versions != NOT_SAMPLED]
    return sampled


def _gap(sequence: TokenSequence) -> npt.NDArray[np.float64]:
    assert sequence.teacher_logprobs is not None
    at = sequence.versions != NOT_SAMPLED
    gap: npt.NDArray[np.float64] = sequence.teacher_logprobs[at] - sequence.logprobs[at].astype(
        float
    )
    return gap


async def _scored(teacher: PolicyEngine, own: TokenSequence, shown: TokenSequence) -> Floats:
    """What the teacher gives the sampled tokens of ``own``, which it reads as ``shown``: float32 ``[T]``."""
    scores = await teacher.score(shown.tokens)
    found = np.zeros(len(own.tokens), np.float32)
    found[own.versions != NOT_SAMPLED] = scores[shown.versions != NOT_SAMPLED]
    if not np.isfinite(found).all():
        raise WorkflowError(
            f"teacher {teacher.policy!r} gave a sampled token of policy {own.policy!r} a log-prob that is not finite"
        )
    return found
