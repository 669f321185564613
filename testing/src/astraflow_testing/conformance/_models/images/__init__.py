"""Tests of engines and trainers that read images."""
