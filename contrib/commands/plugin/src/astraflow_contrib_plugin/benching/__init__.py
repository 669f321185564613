"""``astraflow plugin bench``: what components cost compared with the shipped ones of their kinds."""
