"""Parts of the algorithm suite: batches, golden values, tests of advantages."""
