"""A launcher for a list of hosts that are reached over ssh."""
