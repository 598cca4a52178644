"""Datasets, the order of samples, and batches of images; all of it is deterministic."""
