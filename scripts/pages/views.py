"""What the JSON of the services holds. Dotted keys; ``NAME`` stands for a name, ``N`` for a place in a list.

A test compares these with what real services answer.
"""

from __future__ import annotations

from astraflow_core.dataflow.progress import RunState

View = dict[str, str]

_TASKS = "tasks by state: `admitted`, `accepted`, `rejected`, `failed`, `set_aside`, `running`, `queued`, `lost` (0)"
_ROWS = "rows by state: `accepted`, `trained`, `being_trained`, `buffered`, `stale`, `evicted`, `lost` (0)"

_WAIT: View = {
    "who": "who waits",
    "for_whom": "for whom",
    "what": "for what",
    "since_s": "seconds that it has waited",
    "until_s": "seconds until its deadline",
}

_POOL: View = {
    "size": "RaaS that are there and stay",
    "added": "RaaS asked for since the run began, beyond `raas.replicas`",
    "drained": "RaaS told to leave since then",
    "reports": "reports of the balance so far",
}

DATAFLOW: dict[str, View] = {
    "/v1/health": {
        "service": "`dataflow`",
        "state": ", ".join(f"`{state.value}`" for state in RunState),
    },
    "/v1/waits": {f"N.{key}": meaning for key, meaning in _WAIT.items()},
    "/v1/balance": {
        "pool.size": _POOL["size"],
        "pool.added": _POOL["added"],
        "pool.drained": _POOL["drained"],
        "pool.reports": _POOL["reports"],
        "pool.now_s": "seconds of the run",
        "pool.changed_s": "when a RaaS last came, could be given tasks, was drained or left",
        "report.number": "reports so far; `report` is null before the first",
        "report.at_s": "when it was made, in seconds of the run",
        "report.began_s": "when the first of its windows began",
        "report.pool.size": "RaaS in the pool then (G)",
        "report.pool.held_back": "share of the places on offer that stood empty",
        "report.pool.branch": "`grow`, `shrink` or `hold`",
        "report.pool.target": "RaaS that there should be: the largest target of a policy",
        "report.pool.cool_down_s": "seconds after a change of the pool before a window may lead to the next",
        "report.policies.NAME.steps": "updates in the window, which is the trainer's own",
        "report.policies.NAME.versions": "versions published in it",
        "report.policies.NAME.window_s": "seconds that the updates took, waiting included",
        "report.policies.NAME.waited_s": "seconds of these that the trainer waited for a batch",
        "report.policies.NAME.waiting_fraction": "the quotient (w)",
        "report.policies.NAME.tokens_produced": "trained tokens of the groups that came in",
        "report.policies.NAME.tokens_accepted": "of those that were accepted",
        "report.policies.NAME.tokens_consumed": "of rows that were trained for the first time (n_c)",
        "report.policies.NAME.stale_rows": "rows dropped as too stale; decides nothing",
        "report.policies.NAME.branch": "what the three-zone rule says for this policy",
        "report.policies.NAME.target": "and the size that it gives",
        "report.raas.N.name": "name of a RaaS",
        "report.raas.N.state": "as in status, by now",
        "report.raas.N.ready": "whether it may be given tasks, by now",
        "report.raas.N.draining": "whether it was told to leave, by now",
        "report.raas.N.tokens": "trained tokens of the groups that it brought since the report before",
        "report.raas.N.tokens_accepted": "of those that were accepted",
        "report.raas.N.tokens_per_s": "`tokens` per second",
        "report.raas.N.busy_s": "seconds for which places of it held a task, added up over the places",
        "report.raas.N.idle_s": "seconds for which places that it offered stood empty",
        "report.raas.N.speed": "tokens per second of a busy place; the slowest RaaS are drained first",
        "tasks": _TASKS,
        "eval_tasks": "the same of evaluation tasks",
        "rows.NAME": f"of each policy, {_ROWS}",
        "imbalances": "in words what does not add up; empty if all is accounted for",
    },
    "/v1/status": {
        "run": "name of the run",
        "state": "as in health",
        "reason": "why it is in that state",
        "held_back": "why no new task is given out, such as a full disk; empty if nothing holds them back",
        "users_mistake": "whether the run failed by a mistake that its user can mend: the launcher then ends with 2",
        "seed": "`run.seed`",
        "steps": "updates acknowledged by the slowest policy",
        "steps_total": "`run.steps`",
        "max_staleness": "`run.max_staleness`",
        "elapsed_s": "seconds since the dataflow began",
        "eta_s": "seconds left as the last updates went; null while nobody can tell",
        "policies.NAME.version": "newest version announced; -1: none",
        "policies.NAME.announced": "how the newest version was announced, which is what a RaaS fetches it by (`policy`, "
        "`version`, `transport`, `endpoints`, `digest`, `size`); null: none",
        "policies.NAME.updates": "updates acknowledged",
        "policies.NAME.released": "updates that a checkpoint of the trainer holds",
        "policies.NAME.batch_sequences": "rows of a batch",
        "policies.NAME.buffered": "rows that wait",
        "policies.NAME.in_flight": "sequences that running tasks are expected to give",
        "policies.NAME.under_way": "sequences running, buffered or being trained",
        "policies.NAME.limit": "the most that may be under way",
        "policies.NAME.rows": _ROWS,
        "policies.NAME.accepted": "rows accepted",
        "policies.NAME.trained": "rows trained",
        "policies.NAME.stale": "rows dropped as too stale",
        "policies.NAME.evicted": "rows dropped because their trainer was silent",
        "policies.NAME.replayed": "rows served again by a data policy",
        "policies.NAME.borrowed": "`source`, the policy whose rows are borrowed (empty: none), and the rows lent by state: "
        "`lent`, `trained`, `being_trained`, `waiting`, `stale`, `evicted`, `lost` (0)",
        "policies.NAME.untrained": "sequences without a trained token",
        "policies.NAME.groups_accepted": "groups accepted",
        "policies.NAME.rejected": "groups rejected, by reason",
        "policies.NAME.reward": "mean reward since the last update, or of the last groups",
        "policies.NAME.recent_reward": "mean reward of the last groups",
        "policies.NAME.step_reward": "mean reward between the last two updates",
        "policies.NAME.trained_reward": "mean reward of the batch trained last",
        "policies.NAME.tokens_trained": "tokens trained",
        "policies.NAME.metrics": "metrics of the last step, as the trainer gave them",
        "policies.NAME.data_metrics": "metrics of its data policies",
        "policies.NAME.trainer": "`absent`, `here` or `failed`",
        "policies.NAME.trainer_wait_fraction": "share of its time that the trainer waits for a batch",
        "policies.NAME.max_staleness_seen": "highest staleness of a row in a batch",
        "policies.NAME.staleness": "rows trained, by staleness",
        "tasks": f"{_TASKS}; also pushes that were `duplicates` or `late`, and prompts admitted after a whole epoch of refusals (`forced`), and tasks that gave way to one for the rest of their group (`refilled`)",
        "rejected": "groups that every policy rejected, by reason",
        "held_by": "the data policy that wants no more prompts for now, or nothing",
        "refused_prompts": "prompts not admitted, by data policy",
        "decisions.NAME": "by place (`prompts`, or a policy): data policy → point (`admit`, `accept`, `arrange`, `draw`, of a shadow `shadow_admit` …) → reason of a refusal, or `admitted`, `accepted`, `arranged`, `held back`, `drawn`, `waited` → how often",
        "admission_metrics": "metrics of the data policies under `[prompts] data`",
        "swaps": "data policies that were swapped: when, by whom, at which versions, to what",
        "set_aside": "ids of the prompts that were given up",
        "epoch": "passes over the prompts",
        "cursor": "prompts taken of this pass",
        "raas.N.name": "name of a RaaS",
        "raas.N.state": "`alive`, `suspect`, `gone` or `left`",
        "raas.N.host": "host that it runs on",
        "raas.N.pid": "its process there",
        "raas.N.capacity": "episodes at once",
        "raas.N.serving": "policy → version that it serves",
        "raas.N.pins": "policy → version that it keeps for an evaluation",
        "raas.N.running": "tasks that it holds",
        "raas.N.running_eval": "evaluation tasks that it holds",
        "raas.N.metrics": "what it last reported ([RenewLeases](#renewleases))",
        "raas.N.heard_s": "seconds since it was heard of",
        "raas.N.ready": "whether it may be given tasks: it has served what was newest when it came",
        "raas.N.draining": "whether it was told to leave: it gets no new task",
        **{f"pool.{key}": meaning for key, meaning in _POOL.items()},
        "eval.history.N.version": "smallest version of a finished evaluation",
        "eval.history.N.versions": "policy → version",
        "eval.history.N.sets.NAME": "of each set: `n` prompts, `k` samples, `failed`, `avg`@k, `pass`@k, `mean_reward`",
        "eval.history.N.seconds": "how long it took",
        "eval.running": "version of the evaluation that runs",
        "eval.waiting": "versions of those that wait",
        "eval.tasks": "evaluation tasks by state",
        "best_version": "`version`, `versions` and mean `avg` of the best evaluation; null: none yet",
        "tokens_generated": "tokens sampled by all RaaS",
        "tokens_trained": "tokens trained, of all policies",
        "max_staleness_seen": "highest of the policies",
        "samples": "a few of the last groups: `prompt_id`, `texts`, `rewards`",
        "invariants_ok": "whether both balances add up",
        "waits": "as in waits",
    },
}  # fmt: skip

_REPLICAS = {
    "replicas": "policy or frozen engine → its replicas: number `replica`, `state` (`starting`, `loading`: it has no version yet, `serving`, `silent`, `asleep`), `version` served, `pid` of its engine host, requests `pending` and `routed` to it so far, `restarts` of its host"
}

RAAS: dict[str, View] = {
    "/v1/health": {
        "status": "`ready`, or `starting` while a policy or a frozen engine serves nothing",
        **_REPLICAS,
    },
    "/v1/status": {
        "raas": "its name",
        "pid": "its process",
        "time": "seconds since 1970",
        "ready": "whether every policy serves a version, and every frozen engine runs",
        "serving": "policy → version served",
        "seen": "policy → newest version heard of",
        "episodes_running": "episodes at this moment",
        "tasks": "ids of the tasks that it holds",
        "admission": "`episodes` that it takes at once, by the gauges of its engines, of `most`, and the `reason` if those are fewer",
        **_REPLICAS,
        "metrics": "as reported to the dataflow ([RenewLeases](#renewleases))",
        "waits": "what it waits for, each as in waits of the dataflow",
    },
}


def undescribed(value: object, view: View, path: str = "") -> tuple[list[str], set[str]]:
    """The dotted keys of JSON that a view does not describe, and those of the view that it has."""
    if path in view:
        return [], {path}
    if isinstance(value, dict):
        named = f"{path}.NAME".lstrip(".")
        below = [
            (item, named if any(f"{k}.".startswith(f"{named}.") for k in view) else f"{path}.{key}")
            for key, item in value.items()
        ]
    elif isinstance(value, list) and any(
        f"{k}.".startswith(f"{path}.N.".lstrip(".")) for k in view
    ):
        below = [(item, f"{path}.N") for item in value]
    else:
        return [path], set()
    unknown: list[str] = []
    known: set[str] = set()
    for item, where in below:
        more, found = undescribed(item, view, where.lstrip("."))
        unknown += more
        known |= found
    return unknown, known
