"""A command about the metrics of a run."""
