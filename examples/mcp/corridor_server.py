"""The server of `examples/mcp.toml`: a corridor such as `..@.x`, in which one walks from @ to x.

It has a tool that the policy calls, and two that are AstraFlow's: one begins an episode, one scores it.
"""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("corridor")
corridor = {"here": 0, "goal": 0, "squares": 0, "began": 0}


@server.tool()
def begin(strip: str) -> str:
    """Begin in a corridor such as `..@.x`; the prompt has shown it."""
    here, goal = strip.index("@"), strip.index("x")
    corridor.update(here=here, goal=goal, squares=len(strip), began=abs(here - goal))
    return ""


@server.tool()
def walk(direction: str) -> str:
    """Walk to the left (l) or to the right (r), and see the corridor; another direction is none."""
    moved = corridor["here"] + {"l": -1, "r": 1}.get(direction, 0)
    corridor["here"] = min(max(moved, 0), corridor["squares"] - 1)
    squares = ["."] * corridor["squares"]
    squares[corridor["goal"]] = "x"
    squares[corridor["here"]] = "@"
    return "".join(squares)


@server.tool()
def score() -> float:
    """The share of the way that is done; below 0 after steps in the wrong direction."""
    return 1 - abs(corridor["here"] - corridor["goal"]) / corridor["began"]


if __name__ == "__main__":
    server.run("stdio")
