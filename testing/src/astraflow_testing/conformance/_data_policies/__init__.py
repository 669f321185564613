"""What the data policy suite is made of: a small dataflow, and tests that nothing starves."""
