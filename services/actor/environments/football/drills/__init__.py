"""Scenarios of our own, for training."""
