"""The figures of a RaaS: for renewals to the dataflow, and for Prometheus."""

from __future__ import annotations

import dataclasses
import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.episodes.episodes import EpisodeCounters
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle

_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class Measurements:
    """Collects the figures of one RaaS on demand."""

    def __init__(
        self,
        handles: Mapping[str, PolicyHandle],
        refreshes: Mapping[str, WeightRefresh],
        counters: EpisodeCounters,
        running: Callable[[], int],
        limit: Callable[[], int],
        probed: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._handles, self._refreshes = handles, refreshes
        self._counters, self._running, self._limit = counters, running, limit
        self._probed = probed

    def collect(self) -> dict[str, float]:
        """All figures; those of a policy are named ``POLICY/…``."""
        metrics: dict[str, float] = {
            "running": self._running(),
            "tokens_generated": sum(h.tokens_generated for h in self._handles.values()),
            "prompt_tokens": sum(h.prompt_tokens for h in self._handles.values()),
            "episode_limit": self._limit(),
            "decode_s": sum(
                h.replicas.gauges().get("decode_seconds", 0.0) for h in self._handles.values()
            ),
            "cpu_s": cpu_seconds() + sum(h.replicas.cpu_s for h in self._handles.values()),
            **dataclasses.asdict(self._counters),
        }
        for policy, handle in self._handles.items():
            replicas, refresh = handle.replicas, self._refreshes.get(policy)
            figures = {
                **replicas.gauges(),
                **({} if refresh is None else dataclasses.asdict(refresh.times)),
                "tokens_generated": handle.tokens_generated,
                "prompt_tokens": handle.prompt_tokens,
                "host_restarts": replicas.restarts,
                "replicas_serving": replicas.answering * len(replicas.members),
                "serving": -1 if replicas.serving is None else replicas.serving,
            }
            metrics |= {f"{policy}/{name}": float(value) for name, value in figures.items()}
        return metrics | dict(self._probed())

    def prometheus(self) -> bytes:
        """The same in Prometheus' text format, the policy as a label."""
        registry = CollectorRegistry()
        registry.register(_Families(self.families))
        return generate_latest(registry)

    def families(self) -> Iterable[Metric]:
        """Metric families, one per figure."""
        families: dict[str, GaugeMetricFamily] = {}
        for key, value in self.collect().items():
            policy, _, name = key.rpartition("/")
            metric = f"astraflow_raas_{'policy_' if policy else ''}{_UNFIT.sub('_', name)}"
            labels = ["policy"] if policy else []
            if metric not in families:
                families[metric] = GaugeMetricFamily(metric, f"RaaS figure {name}", labels=labels)
            families[metric].add_metric([policy] if policy else [], value)
        return families.values()


class _Families(Collector):
    """A Prometheus collector of the metrics that a function returns."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics depend on the engines."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The current metric families."""
        return self._families()
