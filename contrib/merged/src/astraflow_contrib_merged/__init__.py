"""Prompt source ``merged``: the prompts of several sources."""
