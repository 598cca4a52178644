"""Training with a parameter server on a virtual clock: real gradients, simulated time."""
