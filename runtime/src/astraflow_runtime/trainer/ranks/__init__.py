"""Trainers of several ranks: their rendezvous, and the commands of rank 0."""
