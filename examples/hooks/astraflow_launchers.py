from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_launchers():
    return [Component("grid", "my_launcher.grid:Grid", "places processes on a grid")]
