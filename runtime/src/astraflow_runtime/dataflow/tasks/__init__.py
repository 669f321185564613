"""Tasks: from a prompt to a lease, and evaluations among them."""
