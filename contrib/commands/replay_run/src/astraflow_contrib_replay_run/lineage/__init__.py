"""``astraflow lineage``: from an update, a version or a row back to prompts, and from a prompt on to the weights."""
