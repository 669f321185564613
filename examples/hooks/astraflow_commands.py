from astraflow_core import Command, hookimpl


@hookimpl
def astraflow_commands():
    return [
        Command(
            name="best-step",
            summary="the step of a run with the highest value of a metric",
            group="inspect a run",
            target="my_commands.best_step:add_arguments",
        )
    ]
