"""Measured claims: speed and memory, as ratios within one run."""
