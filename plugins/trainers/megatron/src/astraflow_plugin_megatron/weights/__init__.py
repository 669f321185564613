"""Weights between a Hugging Face folder, the ranks and publishers; adapters on them."""
