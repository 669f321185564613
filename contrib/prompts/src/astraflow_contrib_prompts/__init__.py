"""Prompt sources: JSON lines from a file, and digit tasks generated from a seed."""
