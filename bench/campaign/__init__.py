"""Faults in runs of real processes: the run, its links, the faults, and the invariants."""
