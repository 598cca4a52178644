"""firetrain: train convolutional networks data-parallel on Slurm clusters."""

__version__ = "0.1.0"
