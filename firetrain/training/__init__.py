"""Training on one rank: the loop, its checkpoints, its measurements, and how it ends."""
