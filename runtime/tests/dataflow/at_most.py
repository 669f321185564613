"""A data policy that holds prompts back."""

from __future__ import annotations


class AtMost:
    """Wants two prompts under way at most."""

    def __init__(self):
        self.under_way = 0

    def on_admitted(self, prompt):
        self.under_way += 1

    def on_ended(self, prompt, outcome):
        self.under_way -= 1

    def hold(self):
        return self.under_way >= 2
