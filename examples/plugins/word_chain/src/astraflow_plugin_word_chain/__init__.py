"""Words that begin with the last letter of the one before."""
