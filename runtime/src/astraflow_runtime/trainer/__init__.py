"""The trainer service: takes batches of one policy, updates it, publishes versions."""
