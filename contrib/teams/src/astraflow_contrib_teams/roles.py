"""A role of a team: the model that plays it, and its prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_contrib_teams.config import RoleTable
from astraflow_contrib_teams.replies import visible
from astraflow_core.errors import PreflightError, UserError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.requests import NotEncodable

TASK = "task_description"
CUT = "[...] "


@dataclass(frozen=True, slots=True)
class Wording:
    """The default prompt of a role: ``template`` with placeholders in braces. ``flexible`` is the
    placeholder of text that models wrote; its beginning is left out where the prompt would not fit."""

    template: str
    system: str = ""
    flexible: str = ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Those that every template of the role must have."""
        return (TASK, self.flexible) if self.flexible else (TASK,)


@dataclass(frozen=True, slots=True)
class RoleTurn:
    """One request to a role: what is trained, what is scored, and its ``text`` without reasoning."""

    sequence: TokenSequence
    completion: Completion
    text: str


class Role:
    """Asks the policy that plays the role. Episodes share it."""

    def __init__(
        self,
        name: str,
        policy: str,
        system: str,
        template: str,
        flexible: str,
        formats: dict[str, ChatFormat] | None,
    ) -> None:
        """``formats`` are shared by the roles of a team; ``None``: prompts are plain text."""
        self._name, self.policy = name, policy
        self._system, self._template, self._flexible = system, template, flexible
        self._formats = formats

    async def ask(self, engines: Mapping[str, PolicyEngine], **values: str) -> RoleTurn:
        """One reply to the template with ``values`` in it."""
        engine = engines[self.policy]
        tokens = self._fitting(engine, values)
        result = await engine.generate(tokens)
        completion = engine.completion(result)
        return RoleTurn(engine.sequence(tokens, result), completion, visible(completion.text))

    def _fitting(self, engine: PolicyEngine, values: dict[str, str]) -> npt.NDArray[np.int32]:
        """A prompt that leaves room for the reply. Models write as much as they like, and that is no error of anybody."""
        room = engine.context_length - engine.sampling.max_tokens
        tokens = self._rendered(engine, values)
        text = values.get(self._flexible, "")
        while len(tokens) > room and text:
            kept = min(len(text) - 1, len(text) * max(room, 0) // len(tokens))
            text = text[len(text) - kept :]
            shorter = CUT + text if text else ""
            tokens = self._rendered(engine, {**values, self._flexible: shorter})
        return tokens

    def _rendered(self, engine: PolicyEngine, values: Mapping[str, str]) -> npt.NDArray[np.int32]:
        try:
            return self._encoded(engine, values)
        except NotEncodable as error:
            raise UserError(
                f"the task of role {self._name!r} cannot be encoded for policy {self.policy!r}: {error.cause}. A tokenizer with few "
                f"characters needs words of your own in [workflow.{self._name}] template and system ('' for none), prompts "
                "that it can encode, and workflow.chat = false for plain text; or take a model that encodes any text"
            ) from error

    def _encoded(self, engine: PolicyEngine, values: Mapping[str, str]) -> npt.NDArray[np.int32]:
        # In one pass, so that a placeholder in what a model wrote stays as it is.
        names = "|".join(map(re.escape, values))
        user = re.sub(rf"\{{({names})\}}", lambda found: values[found[1]], self._template)
        if self._formats is None:
            try:
                return engine.render(f"{self._system}\n{user}" if self._system else user)
            except UserError as error:
                raise NotEncodable(error) from error
        if self.policy not in self._formats:
            self._formats[self.policy] = ChatFormat(engine)
        form = self._formats[self.policy]
        system = [{"role": "system", "content": self._system}] if self._system else []
        messages = [*system, {"role": "user", "content": user}]
        # Not by engine.render: a special token that another model wrote must stay text.
        return form.encode(form.text(messages, (), True), messages, ())


class Casting:
    """Builds the roles of a workflow: each is played by the policy or frozen engine that its table names, by the one with
    its own name, or by the only policy. Raises :class:`~astraflow_core.errors.PreflightError` if a role does not fit."""

    def __init__(self, workflow: str, chat: bool, context: ComponentContext) -> None:
        self._workflow, self._run = workflow, context.run
        self._formats: dict[str, ChatFormat] | None = {} if chat else None
        self._cast: dict[str, str] = {}

    def role(self, name: str, table: RoleTable, wording: Wording) -> Role:
        """The role ``name``."""
        policy = self._cast[name] = self._policy(name, table.policy)
        template = self._template(name, table, wording)
        system = wording.system if table.system is None else table.system
        return Role(name, policy, system, template, wording.flexible, self._formats)

    def check_trained(self, *names: str) -> None:
        """One of these roles must be played by a policy."""
        if not any(self._cast[name] in self._run.policies for name in names):
            players = ", ".join(f"{name} by {self._cast[name]!r}" for name in names)
            raise PreflightError(
                f"workflow {self._workflow!r} would train nothing: {players}, and the policies are "
                f"{', '.join(self._run.policies)}"
            )

    def _policy(self, role: str, named: str | None) -> str:
        run, key = self._run, f"workflow.{role}.policy"
        known = _names(run)
        if named is not None:
            if named not in known:
                raise PreflightError(
                    f"workflow {self._workflow!r}: {key} is {named!r}; the run has {', '.join(known)}"
                )
            return named
        if role in known:
            return role
        if len(run.policies) > 1:
            raise PreflightError(
                f"workflow {self._workflow!r}: no engine named {role!r} can play the {role}, and the run has "
                f"{', '.join(known)}: say which one in {key}"
            )
        return run.policies[0]

    def _template(self, role: str, table: RoleTable, wording: Wording) -> str:
        where, template = f"workflow.{role}.template", table.template
        if table.template_file is not None:
            where = str(table.template_file)
            try:
                template = table.template_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise PreflightError(
                    f"workflow.{role}.template_file: cannot read {where}: {error}"
                ) from error
        if template is None:
            return wording.template
        missing = [f"{{{name}}}" for name in wording.placeholders if f"{{{name}}}" not in template]
        if missing:
            raise PreflightError(f"{where} lacks {' and '.join(missing)}, which the {role} needs")
        return template


def _names(run: RunInfo) -> tuple[str, ...]:
    return (*run.policies, *run.engines)


def task_of(prompt: Prompt, workflow: str) -> str:
    """The text of the task. :class:`~astraflow_core.errors.WorkflowError` names a prompt without one."""
    task = prompt.data.get("prompt")
    if not isinstance(task, str) or not task:
        raise WorkflowError(
            f"prompt {prompt.id!r}: workflow {workflow!r} expects data['prompt'] to be text, got {task!r:.80}"
        )
    return task


def team_trajectory(
    turns: Sequence[RoleTurn], final: RoleTurn, metrics: dict[str, float]
) -> Trajectory:
    """All turns are trained. The completion of the ``final`` one, which the team submits, stands last, where rewards
    look for the answer."""
    others = [turn.completion for turn in turns if turn is not final]
    return Trajectory(
        sequences=tuple(turn.sequence for turn in turns),
        completions=(*others, final.completion),
        metrics=metrics,
    )
