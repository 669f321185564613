"""Data policy ``mastered``: rests prompts that need no more training."""
