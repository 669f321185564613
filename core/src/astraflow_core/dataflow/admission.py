"""Which prompts become tasks."""

from __future__ import annotations

from astraflow_core.dataflow.chains import DataChain
from astraflow_core.dataflow.cursor import PromptCursor
from astraflow_core.types import Prompt


class Admission:
    """Walks the prompts and asks the data policies (``chain``) about each. After a whole epoch of refusals
    the next prompt is admitted all the same, so that a set that is refused whole cannot stall the run;
    ``forced`` counts these."""

    def __init__(self, cursor: PromptCursor, chain: DataChain) -> None:
        self.cursor, self.chain = cursor, chain
        self.forced = 0
        self._refused_in_a_row = 0

    def held_by(self, under_way: int) -> str:
        """The policy that wants no more prompts now; empty if none does. With nothing ``under_way`` it is
        overruled, as nothing could change its mind."""
        return self.chain.held_by() if under_way else ""

    def why_forced(self, prompt: Prompt) -> str:
        """What to tell people about a prompt that was admitted against the policies."""
        refused = ", ".join(f"{name!r} ({n} so far)" for name, n in self.chain.refused.items())
        return (
            f"a whole epoch of {self.cursor.size} prompts was refused by the data policies {refused}; "
            f"{prompt.id!r} is rolled out all the same. Look at their keys: they leave nothing to train on"
        )

    def take(self) -> Prompt | None:
        """Take one prompt; ``None`` if it is refused."""
        prompt = self.cursor.take()
        forced = self._refused_in_a_row >= self.cursor.size
        if forced or self.chain.admit(prompt):
            self.forced += forced
            self._refused_in_a_row = 0
            return prompt
        self._refused_in_a_row += 1
        return None
