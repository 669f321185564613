"""The rollout store of a run: sampled texts, their rewards and what was trained on them.

:mod:`~astraflow_runtime.rollouts.reader` reads it. The format is documented in docs/rollouts.md.
"""
