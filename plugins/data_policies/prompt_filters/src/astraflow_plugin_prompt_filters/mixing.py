"""Mixes prompts of several sources by weights.

Which sources the prompts have, and how many of each, is the data's affair; this policy thins out those that
come too often, so that the prompts rolled out have the shares of ``weights``. With ``f_s`` the share of source
``s`` among the offers so far and ``w_s`` its weight, one offer in ``max(w / f) / (w_s / f_s)`` is admitted: all
of the source that is rarest for its weight, evenly spaced ones (error diffusion, nothing is left to chance) of
the others. Sources that were not met yet do not count, so none is waited for.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_plugin_prompt_filters.config import MixingConfig
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.schedule import at
from astraflow_policy_tools.states import require_keys


class Mixing:
    """Admits by source."""

    def __init__(self, config: MixingConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("mixing", config.policy, context)
        self._version = 0
        self._offered: dict[str, int] = {}
        self._admitted = dict.fromkeys(config.weights, 0)
        self._credit = dict.fromkeys(config.weights, 0.0)

    def admit(self, prompt: Prompt) -> bool:
        """As far as its source's share goes."""
        source = prompt.data.get(self._config.field)
        if not isinstance(source, str) or source not in self._admitted:
            raise PromptError(
                f"data policy 'mixing': prompt {prompt.id!r} has {self._config.field} = {source!r:.40}; "
                f"weights has {', '.join(self._admitted)}"
            )
        self._offered[source] = self._offered.get(source, 0) + 1
        rarities = {
            each: at(self._config.weights[each], self._version) / count
            for each, count in self._offered.items()
        }
        highest = max(rarities.values())
        if highest > 0:
            self._credit[source] += rarities[source] / highest
        if self._credit[source] < 1.0:
            return False
        self._credit[source] -= 1.0
        self._admitted[source] += 1
        return True

    def why_refused(self, prompt: Prompt) -> str:
        """There is one reason."""
        return "its source has its share"

    def on_version(self, policy: str, version: int) -> None:
        """The weights are those of the newest version."""
        if policy == self._policy:
            self._version = version

    def metrics(self) -> dict[str, float]:
        """``offered_SOURCE`` and ``admitted_SOURCE``."""
        offered = {f"offered_{s}".replace("/", "."): float(n) for s, n in self._offered.items()}
        admitted = {f"admitted_{s}".replace("/", "."): float(n) for s, n in self._admitted.items()}
        return {**offered, **admitted}

    def state_dict(self) -> dict[str, Any]:
        """Version, counts and credits."""
        return {
            "version": self._version,
            "offered": dict(self._offered),
            "admitted": dict(self._admitted),
            "credit": dict(self._credit),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would; sources that have a weight here only are new."""
        require_keys(state, "version", "offered", "admitted", "credit")
        known = self._config.weights
        self._version = state["version"]
        self._offered = {s: n for s, n in state["offered"].items() if s in known}
        self._admitted = {s: state["admitted"].get(s, 0) for s in known}
        self._credit = {s: state["credit"].get(s, 0.0) for s in known}
