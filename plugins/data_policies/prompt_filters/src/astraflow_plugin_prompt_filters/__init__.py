"""Data policies: which prompts are rolled out."""
