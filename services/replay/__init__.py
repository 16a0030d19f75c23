"""The replay service: stores sequences, limits the rate, samples by priority."""
