"""Strategy search: finds the fastest placement of a model on a machine, and proves that it is the fastest."""
