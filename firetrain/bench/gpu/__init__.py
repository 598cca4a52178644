"""The checks that need a GPU, in one command; without one they run on the CPU at toy size."""
