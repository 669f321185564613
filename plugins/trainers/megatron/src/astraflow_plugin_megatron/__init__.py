"""Trainer ``megatron``: Megatron-Core's GPT with tensor, pipeline and data parallelism."""
