from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_data_policies():
    return [Component("longest", "my_policy.policy:Longest", "drops long rows")]
