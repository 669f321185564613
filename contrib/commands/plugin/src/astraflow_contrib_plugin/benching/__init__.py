"""``astraflow plugin bench``: what components cost beside the shipped ones of their kinds."""
