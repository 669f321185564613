"""What services say about themselves: structured logs, and that they end with who started them."""
