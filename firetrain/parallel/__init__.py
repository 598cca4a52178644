"""Execution of strategies: one rank's share of a model placed on several ranks."""
