"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """Five data policies that judge groups."""
    return [
        Component(
            name="reward_filter",
            target="astraflow_plugin_group_filters.filters:RewardFilter",
            config="astraflow_plugin_group_filters.config:RewardFilterConfig",
            summary="keeps groups whose rewards lie within bounds",
            capabilities=frozenset({"accept"}),
        ),
        Component(
            name="length_filter",
            target="astraflow_plugin_group_filters.filters:LengthFilter",
            config="astraflow_plugin_group_filters.config:LengthFilterConfig",
            summary="keeps groups whose lengths lie within bounds",
            capabilities=frozenset({"accept"}),
        ),
        Component(
            name="overlong_filter",
            target="astraflow_plugin_group_filters.filters:OverlongFilter",
            config="astraflow_plugin_group_filters.config:OverlongFilterConfig",
            summary="drops groups of which too many sequences were cut off",
            capabilities=frozenset({"accept"}),
        ),
        Component(
            name="partial_groups",
            target="astraflow_plugin_group_filters.filters:PartialGroups",
            config="astraflow_plugin_group_filters.config:PartialGroupsConfig",
            summary="keeps groups that lost trajectories only if enough are left",
            capabilities=frozenset({"accept"}),
        ),
        Component(
            name="accept_all",
            target="astraflow_plugin_group_filters.filters:AcceptAll",
            summary="keeps every group",
            capabilities=frozenset({"accept"}),
        ),
    ]
