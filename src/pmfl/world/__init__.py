"""Layer 1: what a simulation is made of. Everything here returns data or pure functions."""
