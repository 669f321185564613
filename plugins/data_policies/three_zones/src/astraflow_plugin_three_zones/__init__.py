"""Data policy ``three_zones``: how many RaaS there should be."""
