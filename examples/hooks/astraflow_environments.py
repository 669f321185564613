from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_environments():
    return [Component("maze", "my_maze.maze:Maze", "rooms, doors and a key")]
