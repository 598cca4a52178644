"""The check of everything that only a GPU can show, in one command; without a GPU its parts run on the CPU at toy size."""
