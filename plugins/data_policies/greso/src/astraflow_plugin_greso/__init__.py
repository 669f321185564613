"""Data policies: skips prompts that keep giving no signal."""
