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
