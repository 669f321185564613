"""From chat messages to token ids and back, by the template of a model."""
