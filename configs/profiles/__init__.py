"""Profiles that come with firetrain: published machines, and assumptions that say so."""
