"""Compresses trained runs: prune, let weights share values, train in between, and evaluate the result."""
