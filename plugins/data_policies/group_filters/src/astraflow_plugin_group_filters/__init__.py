"""Data policies: which groups are kept."""
