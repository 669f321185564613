import math

from astraflow_core import hookimpl


@hookimpl
def astraflow_step_ended(run, step, metrics):
    with (run.directory / "loss.csv").open("a") as file:
        print(step, metrics.get("loss", math.nan), sep=",", file=file)
