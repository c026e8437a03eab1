"""Compile the kernels before the first run."""
