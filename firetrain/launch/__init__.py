"""Start ranks, on this machine or as Slurm jobs, and monitor them."""
