"""The closed sets of flags per kind, and the rules by which flags pair components before a start."""

from __future__ import annotations

from dataclasses import dataclass

CAPABILITIES: dict[str, dict[str, str]] = {
    "engine": {
        "score": "returns the log-probs of given tokens",
        "pause.keep": "freezes running requests and resumes them at the same token",
        "pause.wait": "finishes running requests before it pauses",
        "pause.abort": "returns partial results with finish_reason 'abort'",
        "weights.path": "loads a verified WeightSource by its path",
        "weights.inflight": "swaps weights between two decoding steps and keeps requests",
        "weights.collective": "receives weights by a collective inside the engine",
        "weights.ipc": "maps weights that another process exported on the same GPU",
        "sleep": "releases its memory and can be woken",
        "lora": "loads adapters as separate weights",
        "adapters": "serves several adapters of one base at once, each request with the one that it names",
        "frozen": "never changes its weights (judge, teacher, opponent)",
        "router_replay": "returns the experts chosen for each token of a model that has some",
        "images": "reads images at their placeholders in a prompt, and in tokens to score",
    },
    "trainer": {
        "entropy": "gives the token entropy of the current policy to the loss",
        "reference": "computes log-probs of a frozen reference model",
        "proximal": "computes log-probs at the start of the update",
        "values": "trains and evaluates a value model",
        "logit_gradients": "gives the squared length of the gradient of each token's log-prob by the logits",
        "checkpoint": "saves and loads its whole state",
        "adopt": "continues with weights that are given to it",
        "async_save": "continues while a checkpoint is written",
        "reshard": "restores a checkpoint saved with another number of ranks",
        "multi_rank": "runs on several ranks",
        "sleep": "moves its state to host memory while engines use the shared devices",
        "sharded_export": "each rank exports the tensor rows that it holds",
        "lora": "trains adapters",
        "gradients": "accumulates gradients of batches and makes optimizer steps on request",
        "router_replay": "imposes the experts recorded while sampling on the model that it trains",
        "images": "trains on sequences with images",
    },
    "algorithm": {
        "entropy": "may need the token entropy",
        "reference": "may need reference log-probs",
        "proximal": "may need proximal log-probs",
        "values": "may need a value model",
        "logit_gradients": "may need the squared length of the gradient of each token's log-prob by the logits",
        "current": "may need current log-probs of the whole mini-batch before its loss",
    },
    "data_policy": {
        "admit": "decides before rollout which prompts are rolled out",
        "accept": "decides after rollout which groups are kept, per policy",
        "key": "orders the buffer",
        "arrange": "decides for each batch which fresh rows come first",
        "draw": "chooses the rows of a batch",
        "borrow": "mixes rows sampled by another policy into batches, or shares its stream",
        "hold": "decides when no more prompts are rolled out",
        "scale": "decides how many RaaS to run; named in [balance]",
        "stateful": "has state that belongs in a checkpoint",
        "random": "makes random choices from the run's seed",
    },
    "transport": {
        "full": "sends whole versions",
        "incremental": "sends what changed since an earlier version",
        "adapter": "sends adapters",
        "same_host": "needs publisher and receiver on one host",
        "cross_host": "works between hosts",
        "relay": "receivers can serve other receivers",
        "sharded": "ranks of a trainer publish their own blocks",
        "collective": "needs an engine that receives weights by a collective",
        "ipc": "needs an engine that maps device memory of the trainer",
        "plain_text": "has unencrypted connections; refused in a run with [tls]",
    },
    "workflow": {
        "multi_turn": "several turns in an episode",
        "multi_policy": "uses more than one policy",
        "tools": "calls tools",
        "live": "waits for requests from outside, so it is not called before a run",
    },
    "environment": {
        "blocking": "runs in worker processes that are killed at a deadline",
        "deterministic": "the same task, seed and actions produce the same observations",
        "tools": "offers tools and understands tool calls",
        "multi_role": "has roles that take turns and are rewarded separately",
    },
    "reward": {
        "blocking": "runs in worker processes that are recycled and killed at a deadline",
    },
    "prompt_source": {
        "generated": "generates its prompts from a seed",
    },
    "launcher": {
        "local": "starts processes on this host",
        "cluster": "places processes on other hosts",
    },
    "tracker": {
        "rollouts": "shows trajectories",
        "spans": "takes the spans of prompts",
    },
}
"""Kind → flag → what a component that declares it promises."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A component of ``kind`` with ``flag`` needs a partner of ``partner_kind`` with one of ``any_of``."""

    kind: str
    flag: str | None
    partner_kind: str
    any_of: tuple[str, ...]


PAIRINGS: tuple[Pairing, ...] = (
    Pairing("transport", "collective", "engine", ("weights.collective",)),
    Pairing("transport", "ipc", "engine", ("weights.ipc",)),
    Pairing("transport", "full", "engine", ("weights.path", "weights.collective", "weights.ipc")),
    Pairing("transport", "incremental", "engine", ("weights.path",)),
)
"""Checked for every policy of a run. What an algorithm needs of its trainer is checked on the
configured instance (its ``needs``), since most needs depend on its keys."""


def unknown_flags(kind: str, flags: frozenset[str]) -> list[str]:
    """Flags that are not in the closed set of ``kind``, sorted."""
    return sorted(flags - CAPABILITIES[kind].keys())


def pairing_problems(
    kind: str,
    name: str,
    flags: frozenset[str],
    partner_kind: str,
    partner: str,
    has: frozenset[str],
) -> list[str]:
    """Why component ``kind/name`` cannot work with ``partner_kind/partner``; empty if it can."""
    problems = []
    for rule in PAIRINGS:
        if (rule.kind, rule.partner_kind) != (kind, partner_kind):
            continue
        if rule.flag is not None and rule.flag not in flags:
            continue
        if not has.intersection(rule.any_of):
            wanted = " or ".join(rule.any_of)
            problems.append(
                f"{kind} {name!r} needs {partner_kind} capability {wanted}; {partner!r} lacks it"
            )
    return problems
