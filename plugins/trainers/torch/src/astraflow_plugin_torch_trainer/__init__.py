"""Trainer ``torch``: a Hugging Face causal LM in a single process."""
