"""An MCP server by which an agent observes and operates runs."""
