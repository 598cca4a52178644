"""One rank's work: the training loop and what it is made of."""
