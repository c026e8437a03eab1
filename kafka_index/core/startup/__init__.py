"""Simulation of a broker's startup on its data directories."""
