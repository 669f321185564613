from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_algorithms():
    return [Component("mine", "my_loss.loss:Mine", "clipped ratio", "my_loss.loss:MineConfig")]
