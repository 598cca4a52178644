"""From gradients to new parameters: SGD and LARS, and the learning rate over time."""
