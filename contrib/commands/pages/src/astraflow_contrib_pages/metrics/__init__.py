"""The metrics of a run as columns of numbers."""
