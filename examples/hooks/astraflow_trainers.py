from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_trainers():
    return [Component("mine", "my_trainer.trainer:Mine", "a trainer", "my_trainer.config:Config")]
