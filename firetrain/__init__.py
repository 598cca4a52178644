"""firetrain: train convolutional networks on Slurm clusters."""

__version__ = "0.1.0"
