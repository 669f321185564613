from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_trackers():
    return [Component("mine", "my_tracker.tracker:Mine", "sends metrics to a lab notebook")]
