"""Images: the state of a dataflow at one entry of its journal, from which a restart continues.

The journal remains the truth: an image holds what the entries before it lead to, and whatever is wrong with it, all
entries are read.
"""
