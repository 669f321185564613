"""Environments of verifiers, which know nothing of AstraFlow, give the prompts and play the episodes."""
