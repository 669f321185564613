"""What one GPU does: benchmarks that a machine without one cannot run, and a report of them for ``make gpu``."""
