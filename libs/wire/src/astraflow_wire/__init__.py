"""The messages between the processes of a run, and helpers for each process."""
