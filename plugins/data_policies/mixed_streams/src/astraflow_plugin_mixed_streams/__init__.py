"""Batches of one policy that borrow rows of another."""
