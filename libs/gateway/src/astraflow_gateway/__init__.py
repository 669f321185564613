"""A server through which agents sample from the policies of a run, and that records what was sampled."""
