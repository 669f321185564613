"""A simulated shop: search, click, choose options, buy."""
