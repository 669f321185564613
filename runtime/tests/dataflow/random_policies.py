"""Data policies with a say at every point, most of them at random."""

from __future__ import annotations

from collections import Counter

import numpy as np

from astraflow_core.types import Verdict


class DropEqual:
    def accept(self, group):
        return Verdict(len(set(group.rewards.tolist())) > 1, "equal")


class Picky:
    """Randomly refuses prompts that it has seen often."""

    def __init__(self):
        self.random, self.seen = np.random.default_rng(7), Counter()

    def admit(self, prompt):
        return self.random.random() < 1 / (1 + self.seen[prompt.id] / 8)

    def accept(self, group):
        self.seen[group.prompt.id] += 1
        return Verdict(True)

    def state_dict(self):
        return {"random": self.random.bit_generator.state, "seen": dict(self.seen)}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]
        self.seen = Counter(state["seen"])


class HalfReplayed:
    """Draws up to half of a batch from what was served before, now and then none."""

    def __init__(self):
        self.random = np.random.default_rng(3)

    def state_dict(self):
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]

    def draw(self, count, fresh, kept, version):
        if self.random.random() < 0.2:
            return None
        old = list(kept)[: count // 2]
        need = count - len(old)
        return [*fresh[:need], *old] if len(fresh) >= need else None


class Borrowing:
    """Borrows up to half of a batch from policy ``a``, any of what is lent."""

    source, max_age = "a", 1

    def __init__(self):
        self.random = np.random.default_rng(5)

    def most(self, count):
        return count // 2

    def borrow(self, count, lent, version):
        chosen = self.random.permutation(len(lent))[: int(self.random.integers(0, count // 2 + 1))]
        return [lent[index] for index in chosen]

    def state_dict(self):
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]


class Sharing(Borrowing):
    """Trains on rows of policy ``a`` only, any of what is lent; now and then it waits for more."""

    def most(self, count):
        return count

    def borrow(self, count, lent, version):
        chosen = self.random.permutation(len(lent))[:count]
        return [lent[index] for index in chosen] if self.random.random() < 0.8 else []


class OldestFirst:
    def key(self, row):
        return float(row.min_version)
