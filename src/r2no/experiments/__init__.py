"""Experiments: the demo on the built-in wake, RealPDEBench runs, the paper's studies."""

from r2no.experiments.demo import DemoSettings, run_demo

__all__ = ["DemoSettings", "run_demo"]
