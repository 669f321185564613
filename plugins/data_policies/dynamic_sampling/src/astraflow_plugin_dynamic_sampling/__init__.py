"""Data policy ``dynamic_sampling``: drops groups whose rewards do not differ."""
