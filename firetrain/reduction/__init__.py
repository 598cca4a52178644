"""Summing gradients over ranks: buckets, plans executed over point-to-point sends, the libraries' own all-reduce."""
