"""OpenAI's protocols, and the token door of vLLM, whose errors have the same shape."""
