"""Prompts and rewards of reasoning-gym: procedural tasks with exact scoring."""
