"""Model references ``hf:``: models of the Hugging Face hub, fetched once and pinned to a commit."""
