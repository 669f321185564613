"""A configuration as text for people: what each key means, and who set each value."""
