"""Data policies: applied in order, what they decide, and their replacement in a running run."""
