"""OpenAI's protocols, and vLLM's token endpoint, whose errors have the same shape."""
