"""The protocols that agents speak."""
