"""What an episode sampled, as token ids: calls, the graph of their prefixes, sequences to train."""
