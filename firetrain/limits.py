"""Upper bounds of what sizes something, one place for config and options: a slip of the finger is told, and takes no memory."""

from __future__ import annotations

# of a job, and of what predictions are asked for
MOST_RANKS = 1 << 20
# that a plan is written out for, transfer by transfer: a ring of 1024 ranks has two million
MOST_PLANNED_RANKS = 1024
# that are started as processes of one machine
MOST_LOCAL_RANKS = 1024
MOST_IMAGES = 1 << 24
MOST_STEPS = 10**9
MOST_EPOCHS = 10**6
MOST_CLASSES = 1 << 16
MOST_PIXELS = 1024
MOST_THREADS = 1024
MOST_REPEATS = 100_000
# days are enough to wait for a rank
MOST_SECONDS = 1e6
# a year between failures, a price, watts: whatever is multiplied and not counted
MOST_OF_ANYTHING = 1e12
