"""Benchmarks. Each verifies its results and compares them with a reference implementation."""
