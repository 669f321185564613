from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_rewards():
    return [Component("exact", "my_reward.exact:score", "1 for the right answer")]
