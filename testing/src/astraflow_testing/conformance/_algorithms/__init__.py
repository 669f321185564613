"""What the algorithm suite is made of: batches, golden values, demands of advantages."""
