"""``r2no bench``: RealPDEBench and the paper's experiments, the other wing of the package."""

from r2no.cli.bench import data, protocol, study  # noqa: F401  (each registers itself)
