"""Which prompts become tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.journal.entries import PromptsRejected
from astraflow_runtime.dataflow.policies.decisions import Decision, PromptRefusal
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor


@dataclass(frozen=True, slots=True)
class Offer:
    """A prompt that was drawn, and the decision of the data policies; ``forced``: they were not
    asked.
    """

    prompt: Prompt
    ruling: Decision
    forced: bool = False

    @property
    def admitted(self) -> bool:
        """Whether it becomes a task."""
        return self.ruling.refusal is None


class PromptAdmission:
    """Draws prompts in order and asks the data policies (``chain``) about each. After a whole epoch
    of rejections the next prompt is admitted anyway, so that a set that is wholly rejected cannot
    stall the run; ``forced`` counts these, ``refused_in_a_row`` the rejections since the last
    admitted prompt. ``quarantined``: prompt → how environments failed on it, for prompts that are
    not drawn again.
    """

    def __init__(self, cursor: PromptCursor, chain: PolicyPipeline) -> None:
        self.cursor, self.chain = cursor, chain
        self.forced = 0
        self.refused_in_a_row = 0
        self.quarantined: dict[str, str] = {}

    def quarantine(self, prompt: Prompt, kind: str) -> None:
        """Draw a prompt no more: environments failed on it repeatedly."""
        self.quarantined[prompt.id] = kind

    def held_by(self, under_way: int) -> str:
        """The policy that holds back prompts now; empty if none does. With nothing ``under_way`` it
        is overruled, since nothing could change its decision.
        """
        return self.chain.held_by() if under_way else ""

    def why_forced(self, prompt: Prompt) -> str:
        """The message about a prompt that was admitted against the policies."""
        refused = ", ".join(f"{name!r} ({n} so far)" for name, n in self.chain.refused.items())
        by = f"by the data policies {refused}" if refused else ""
        if count := len(self.quarantined):
            by += f"{' or ' if by else ''}because environments failed on them ({count} are quarantined)"
        return (
            f"a whole epoch of {self.cursor.size} prompts was refused {by}; "
            f"{prompt.id!r} is rolled out anyway. Check the keys of the data policies: they leave no prompt to train on"
        )

    def take(self) -> Offer:
        """Draw one prompt."""
        prompt = self.cursor.take()
        if self.refused_in_a_row >= self.cursor.size:
            self.forced += 1
            self.refused_in_a_row = 0
            return Offer(prompt, Decision(), forced=True)
        if kind := self.quarantined.get(prompt.id):
            refusal = PromptRefusal("", f"quarantined: environments failed on it ({kind})")
            offer = Offer(prompt, Decision(refusal))
        else:
            offer = Offer(prompt, self.chain.admit(prompt))
        self.refused_in_a_row = 0 if offer.admitted else self.refused_in_a_row + 1
        return offer


def rejections(offers: Iterable[Offer]) -> list[PromptsRejected]:
    """The rejections among ``offers``, those of shadows included, by policy and reason."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for offer in offers:
        for doubt in offer.ruling.shadow_rejections:
            found.setdefault((doubt.by, doubt.reason, True), []).append(offer.prompt.id)
        if (refusal := offer.ruling.refusal) is not None:
            found.setdefault((refusal.by, refusal.reason, False), []).append(offer.prompt.id)
    return [
        PromptsRejected(by=by, reason=reason, prompts=prompts, shadow=shadow)
        for (by, reason, shadow), prompts in found.items()
    ]
