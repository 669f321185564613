"""Megatron-Core's GPT as a policy: the model, its passes and its optimizer."""
