"""A launcher for Slurm clusters."""
