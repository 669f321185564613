"""Trains on the traffic of a live service: whoever wants to opens an episode, and rewards it later."""
