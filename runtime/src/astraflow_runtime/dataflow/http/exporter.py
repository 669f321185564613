"""The status as Prometheus metrics, built for every scrape in a new registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from astraflow_wire.policy_status import PolicyStatus
from astraflow_wire.status import EvaluationResult, RaasStatus, Status

_POLICY_COUNTERS = ("updates", "replayed", "untrained", "groups_accepted", "tokens_trained")
_POLICY_GAUGES = (
    "version", "under_way", "limit", "reward", "trained_reward", "trainer_wait_fraction",
    "max_staleness_seen", "reward_std", "completion_length_mean", "completion_length_max",
    "truncated_fraction", "equal_groups_fraction", "pass_rate",
)  # fmt: skip


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        state = GaugeMetricFamily(
            "astraflow_run_state", "1 for the state of the run", labels=["state"]
        )
        state.add_metric([status.state], 1)
        yield state
        tasks = GaugeMetricFamily("astraflow_tasks", "Tasks by state", labels=["state"])
        for name, count in asdict(status.tasks).items():
            tasks.add_metric([name], count)
        yield tasks
        reasons = CounterMetricFamily("astraflow_rejected", "Rejected groups", labels=["reason"])
        for reason, count in status.rejected.items():
            reasons.add_metric([reason], count)
        yield reasons
        failures = CounterMetricFamily(
            "astraflow_environment_failures", "Attempts failed by environments", labels=["kind"]
        )
        for kind, count in status.environment_failures.items():
            failures.add_metric([kind], count)
        yield failures
        decisions = CounterMetricFamily(
            "astraflow_data_decisions",
            "Decisions of data policies",
            labels=["place", "name", "point", "decision"],
        )
        for place, policies in status.decisions.items():
            for name, points in policies.items():
                for point, counts in points.items():
                    for decision, count in counts.items():
                        decisions.add_metric([place, name, point, decision], count)
        yield decisions
        rows = GaugeMetricFamily("astraflow_rows", "Rows by state", labels=["policy", "state"])
        for policy, facts in status.policies.items():
            for name, count in asdict(facts.rows).items():
                rows.add_metric([policy, name], count)
        yield rows
        borrowed = GaugeMetricFamily(
            "astraflow_borrowed_rows",
            "Rows shared with a policy by state",
            labels=["policy", "state"],
        )
        for policy, facts in status.policies.items():
            for name, count in asdict(facts.borrowed).items():
                if name != "source":
                    borrowed.add_metric([policy, name], count)
        yield borrowed
        pool = GaugeMetricFamily("astraflow_pool", "RaaS, requested and draining", labels=["what"])
        for name, count in asdict(status.pool).items():
            pool.add_metric([name], count)
        yield pool
        yield from self._policies(status.policies)
        yield _evaluation(status.eval.history)
        yield from self._raas(status.raas)
        yield CounterMetricFamily(
            "astraflow_tokens_generated", "Sampled tokens", value=status.tokens_generated
        )
        yield GaugeMetricFamily(
            "astraflow_invariants_ok",
            "1 if the accounting is consistent",
            value=float(status.invariants_ok),
        )

    def _policies(self, policies: dict[str, PolicyStatus]) -> Iterator[Metric]:
        for name in _POLICY_COUNTERS:
            counter = CounterMetricFamily(f"astraflow_policy_{name}", name, labels=["policy"])
            for policy, facts in policies.items():
                counter.add_metric([policy], getattr(facts, name))
            yield counter
        for name in _POLICY_GAUGES:
            gauge = GaugeMetricFamily(f"astraflow_policy_{name}", name, labels=["policy"])
            for policy, facts in policies.items():
                if getattr(facts, name) is not None:
                    gauge.add_metric([policy], getattr(facts, name))
            yield gauge
        trainer = GaugeMetricFamily(
            "astraflow_trainer", "Metrics of the last step", labels=["policy", "metric"]
        )
        for policy, facts in policies.items():
            for name, value in {**facts.metrics, **facts.data_metrics}.items():
                if value is not None:
                    trainer.add_metric([policy, name], value)
        yield trainer
        rates = GaugeMetricFamily(
            "astraflow_source_pass_rate", "Metric of the last step", labels=["policy", "source"]
        )
        episodes = GaugeMetricFamily(
            "astraflow_episodes", "Means of the last batch", labels=["policy", "metric"]
        )
        for policy, facts in policies.items():
            for source, rate in facts.pass_rates.items():
                rates.add_metric([policy, source], rate.mean)
            for name, measured in facts.episode_metrics.items():
                episodes.add_metric([policy, name], measured.mean)
        yield rates
        yield episodes

    def _raas(self, fleet: list[RaasStatus]) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "astraflow_raas_alive", "1 if it was heard from in time", labels=["raas"]
        )
        metrics = GaugeMetricFamily("astraflow_raas", "As reported", labels=["raas", "metric"])
        for raas in fleet:
            up.add_metric([raas.name], float(raas.state == "alive"))
            for name, value in raas.metrics.items():
                if value is not None:
                    metrics.add_metric([raas.name, name], value)
        yield up
        yield metrics


def _evaluation(history: list[EvaluationResult]) -> Metric:
    """avg@k of each policy on each set, of the last evaluation."""
    found = GaugeMetricFamily(
        "astraflow_eval", "avg@k of the last evaluation, 0 to 1", labels=["policy", "set"]
    )
    for last in history[-1:]:
        for name, result in last.sets.items():
            for policy in last.versions:
                if (avg := result.policies.get(policy, result).avg) is not None:
                    found.add_metric([policy, name], avg)
    return found


def exporter(status: Callable[[], Status]) -> Callable[[], bytes]:
    """A function that gives the text of ``/metrics``."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    return lambda: generate_latest(registry)
