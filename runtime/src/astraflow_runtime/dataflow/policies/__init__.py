"""Data policies: how they are applied, their decisions, and their replacement during a run."""
