"""What outlives the dataflow's process: the journal, its readers, and ``metrics.jsonl``."""
