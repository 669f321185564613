"""The protocols that agents speak: each owns its routes, its errors and its streams."""
