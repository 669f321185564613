"""Pickles: decoded in a confined process, written from plain values alone."""
