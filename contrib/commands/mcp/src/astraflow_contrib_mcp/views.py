"""Tools that look at runs; they change nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from astraflow_contrib_mcp.runs import Runs
from astraflow_core.errors import UserError

ASK_S = 10.0
_SUMMARY_KEYS = ("state", "steps", "steps_planned", "wall_s", "error")
FIGURES = (
    "reward", "trained_reward", "loss", "kl", "entropy", "clip_fraction", "grad_norm", "staleness_mean",
    "completion_length_mean", "truncated_fraction", "tokens_per_s", "wait_s", "update_s",
)  # fmt: skip
"""The metrics that the tool metrics returns by default."""
_EVALUATIONS = 10
_KEYS = 40
_MOST_RUNS = 100
_MOST_ACTIONS = 50

RunName = Annotated[
    str,
    Field(
        max_length=255,
        description="name of a run, as list_runs gives it; empty: the newest that has not ended",
    ),
]


class Views:
    """The tools, as methods: the docstrings and annotations are what an agent reads."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def list_runs(self) -> dict[str, Any]:
        """List the runs that this server is about, the newest first: name, how each ended, steps made and planned."""
        found = []
        for run in self._runs.all():
            try:
                summary = json.loads((run / "summary.json").read_bytes())
            except FileNotFoundError:
                summary = {"state": "not ended (use status to see whether it is running)"}
            except (OSError, ValueError):
                summary = {"state": "its summary.json cannot be read"}
            found.append(
                {"run": run.name, **{key: summary[key] for key in _SUMMARY_KEYS if key in summary}}
            )
        return {"runs": found[:_MOST_RUNS], "found": len(found)}

    def status(self, run: RunName = "") -> dict[str, Any]:
        """Show a running run: state, steps, policies with their buffers and versions, tasks, RaaS, swaps of data policies.
        An ended run answers with an error; use summary."""
        return dict(self._ask(run, "status"))

    def waits(self, run: RunName = "") -> dict[str, Any]:
        """Show which process of a running run waits for which, for what, since when and until when (seconds)."""
        return {"waits": self._ask(run, "waits")}

    def balance(self, run: RunName = "") -> dict[str, Any]:
        """Show whether a running run has too few RaaS or too many. `report.policies.NAME.waiting_fraction` is the share of its
        time that a trainer waited for trajectories; `report.pool.held_back` the share of episode slots that were idle
        because `max_staleness` held tasks back; `report.pool.target` the recommended number of RaaS. A trainer that waits
        while little is held back needs more RaaS. There is no `report` before the first window has ended."""
        return dict(self._ask(run, "balance"))

    def metrics(
        self,
        run: RunName = "",
        policy: Annotated[str, Field(max_length=255, description="empty: all policies")] = "",
        figures: Annotated[
            list[Annotated[str, Field(max_length=100)]],
            Field(max_length=20, description="names of figures; empty: the usual ones"),
        ] = [],  # noqa: B006 - the SDK shows it as the default and passes a copy
        last: Annotated[int, Field(ge=1, le=200, description="number of newest steps")] = 20,
    ) -> dict[str, Any]:
        """Read figures of the newest steps of each policy, and the newest evaluations, of a running or ended run.
        `figures` of the answer are the names that may be asked for."""
        from astraflow_runtime.launch.results.metrics import left_out, read_metrics

        folder = self._runs.find(run)
        read = read_metrics(folder)
        policies = list(dict.fromkeys(step.policy for step in read.steps))
        if policy and policy not in policies:
            raise UserError(
                f"run {folder.name} has no steps of a policy {policy[:100]!r}; it has those of: {', '.join(policies) or 'none yet'}"
            )
        known = sorted({name for step in read.steps[-500:] for name in step.figures})
        if unknown := [name for name in figures if name not in known]:
            raise UserError(
                f"run {folder.name} has no figures {unknown}; it has: {', '.join(known)}"
            )
        wanted = figures or FIGURES
        return {
            "run": folder.name,
            "policies": {
                name: [
                    {
                        "step": step.step,
                        "time": step.time,
                        **{key: step.figures[key] for key in wanted if key in step.figures},
                    }
                    for step in [s for s in read.steps if s.policy == name][-last:]
                ]
                for name in policies
                if policy in ("", name)
            },
            "evaluations": [
                {"time": record.time, **msgspec.to_builtins(record.evaluation)}
                for record in read.evaluations[-_EVALUATIONS:]
            ],
            "figures": known,
            "damaged": left_out(read, folder),
        }

    def summary(self, run: RunName = "") -> dict[str, Any]:
        """Read the summary of an ended run: how and why it ended, steps, rewards, evaluations, tokens and processes."""
        from astraflow_runtime.launch.results.report import read_summary

        return read_summary(self._runs.find(run))

    def explain_key(
        self,
        key: Annotated[
            str,
            Field(
                min_length=1,
                max_length=200,
                description="such as run.max_staleness, or engine/torch.max_running",
            ),
        ],
    ) -> dict[str, Any]:
        """Explain a key of the configuration of runs: type, default and meaning."""
        from astraflow_core.catalog import Catalog
        from astraflow_runtime.config.explain import explain

        found = explain(key, Catalog.discover())
        return {"keys": [entry.text() for entry in found[:_KEYS]], "found": len(found)}

    def trace(
        self,
        subject: Literal["prompt", "group"],
        id: Annotated[str, Field(min_length=1, max_length=255, description="such as train-12")],
        run: RunName = "",
    ) -> dict[str, Any]:
        """Explain what happened to a prompt or a group: which data policy refused it and why, where it ran, its verdicts,
        and the batches and steps that it was trained in. Reads the journal of a running or ended run."""
        from astraflow_runtime.cli.trace import read_trace, trace_table

        folder = self._runs.find(run)
        return trace_table(read_trace(folder, subject, id), folder, subject, id)

    def actions(self, run: RunName = "") -> dict[str, Any]:
        """List the newest requests to change a run, by people and agents, with their reasons and outcomes, the last one at
        the end."""
        from astraflow_runtime.audit_log import read_audit

        newest = read_audit(self._runs.find(run), _MOST_ACTIONS)
        return {"actions": [msgspec.to_builtins(line) for line in reversed(newest)]}

    def _ask(self, run: str, view: str) -> Any:
        with self._runs.asking(run) as client:
            return client.get_json(f"/v1/{view}", deadline_s=ASK_S)
