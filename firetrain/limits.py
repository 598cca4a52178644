"""Upper bounds of numbers in configs and options, so that a typing error is reported instead of exhausting memory."""

from __future__ import annotations

# ranks of a job or a prediction
MOST_RANKS = 1 << 20
# up to this number, placements are drawn and searched, and their steps simulated
MOST_PLACED_RANKS = 128
# ranks for which a plan is listed transfer by transfer: a ring of 1024 ranks has two million transfers
MOST_PLANNED_RANKS = 1024
# ranks that are started as processes on one machine
MOST_LOCAL_RANKS = 1024
MOST_IMAGES = 1 << 24
MOST_STEPS = 10**9
MOST_EPOCHS = 10**6
MOST_CLASSES = 1 << 16
MOST_PIXELS = 1024
MOST_THREADS = 1024
MOST_REPEATS = 100_000
# the longest time to wait for a rank: about 12 days; and the shortest: ranks need longer to connect
MOST_SECONDS, LEAST_WAIT_S = 1e6, 1.0
# micro-batches of a pipeline
MOST_MICRO_BATCHES = 1 << 10
# learning rates, weight decay and other factors of an update
MOST_RATE = 1e6
# hours between failures, prices, watts and similar numbers
MOST_OF_ANYTHING = 1e12
