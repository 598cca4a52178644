"""Profiles that come with firetrain: machines with published figures, and an uncalibrated one with assumed values."""
