"""Convolutional networks of the large-batch literature, with torchvision's parameter names where it has them."""
