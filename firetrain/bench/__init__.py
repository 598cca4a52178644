"""Measurements that verify what they measure and print a peer beside it."""
