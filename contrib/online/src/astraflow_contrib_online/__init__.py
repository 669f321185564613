"""Trains on the traffic of a live service: clients open episodes, and reward them later."""
