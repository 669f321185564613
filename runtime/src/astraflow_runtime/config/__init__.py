"""The configuration as text: the meaning of each key, and the origin of each value."""
