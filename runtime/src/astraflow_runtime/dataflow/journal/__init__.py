"""The persistent records of the dataflow: the journal, its readers, and ``metrics.jsonl``."""
