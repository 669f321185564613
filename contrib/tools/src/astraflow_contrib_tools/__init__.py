"""A policy answers with the help of tools: Python functions and MCP servers."""
