"""Speculative decoding without a draft model: several tokens of a sequence in one forward pass, and the same tokens.

``history`` guesses what comes next from what was sampled before; ``lengths`` decides how many of the guesses are worth it;
``drafts`` does both for the running batch; ``packed`` is the forward pass that verifies them.
"""
