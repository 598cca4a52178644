"""Convolutional networks of the large-batch literature; models that torchvision has too use its parameter names."""
