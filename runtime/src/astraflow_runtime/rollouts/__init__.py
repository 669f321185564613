"""The rollout store of a run: what was sampled, how it was rewarded and what was trained on it, for people.

:mod:`~astraflow_runtime.rollouts.reader` reads it. The format is documented in docs/rollouts.md.
"""
