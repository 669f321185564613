"""Parts of the data policy suite: a small dataflow, and tests of starvation."""
