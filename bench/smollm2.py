"""`astraflow run examples/smollm2.toml`: a real language model on a CPU, accuracy before and after."""

from __future__ import annotations

from bench.quickstart import EXAMPLES, summary_of

QUICK = ("run.steps=1", "policies.solver.batch_sequences=8", "eval.sets.held_out.size=8")
FIELDS = (
    "steps", "setup_s", "wall_s", "cpu_s", "reward_first", "reward_last", "eval_first", "eval_last",
    "tokens_generated", "tokens_trained", "max_staleness_seen", "trainer_wait_fraction",
)  # fmt: skip


def measure(quick: bool) -> dict[str, float]:
    """One run of the example as it is, or one small step of it."""
    summary = summary_of(EXAMPLES / "smollm2.toml", *(QUICK if quick else ()), timeout_s=7200)
    return {field: float(summary[field]) for field in FIELDS}
