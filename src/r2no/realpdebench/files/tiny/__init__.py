"""Small data sets in the exact formats of RealPDEBench, for tests, demonstrations and trials."""

from r2no.realpdebench.files.tiny.plans import tiny_system
from r2no.realpdebench.files.tiny.write import write_tiny

__all__ = ["tiny_system", "write_tiny"]
