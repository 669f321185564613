"""How the suite of environments plays them."""
