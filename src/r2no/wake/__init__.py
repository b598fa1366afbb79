"""The built-in wake: simulated flow past a cylinder, and a stand-in for its measurement.

Both come from one lattice Boltzmann solver. ``numerical`` is what a simulation gives: coarse
lattice, ideal inflow, u, v and p. ``real`` is a **stand-in** for a measurement, not one: a finer
lattice, physics the simulation leaves out and a model of PIV.

From the bottom up: ``cylinder`` (the lattice as a place), ``lattice`` (the solver; starting a wake
and measuring its frequency), ``standin`` (what the simulation leaves out), ``runs`` (the
simulations) and ``dataset`` (windows and cache). Lengths are in cylinder diameters D, velocities
in free streams U.
"""

from r2no.wake.cylinder import Domain
from r2no.wake.dataset import WakeData, make_wake
from r2no.wake.lattice import LatticeFlow, Shedding, measure_shedding
from r2no.wake.runs import WakeSettings

__all__ = [
    "Domain",
    "LatticeFlow",
    "Shedding",
    "WakeData",
    "WakeSettings",
    "make_wake",
    "measure_shedding",
]
