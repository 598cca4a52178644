"""Sums gradients over ranks: by plans that are executed with point-to-point sends, or by the libraries' own all-reduce."""
