"""Optimisers (SGD, LARS, LAMB) and learning-rate schedules."""

from firetrain.optim.lamb import Lamb
from firetrain.optim.lars import Lars
from firetrain.optim.learning_rate import LearningRate

__all__ = ["Lamb", "Lars", "LearningRate"]
