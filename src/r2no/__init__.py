"""Adapt simulation-pretrained neural operators to real measurements."""

__version__ = "0.1.0"
