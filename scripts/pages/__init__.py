"""The generated pages under docs/, one module each; `scripts/docs.py` writes them."""
