"""Trainer ``fsdp``: a Hugging Face causal LM sharded over ranks."""
