"""Comparisons that come with firetrain: `firetrain compare NAME`."""
