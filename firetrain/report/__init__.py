"""Telling what runs came to, from their directories alone."""
