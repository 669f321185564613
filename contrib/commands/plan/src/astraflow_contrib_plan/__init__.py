"""What a run would start where, and whether it fits."""
