"""Optimisers (SGD, LARS, LAMB) and learning-rate schedules."""
