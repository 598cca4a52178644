"""Images: where they are, in which order they come, and how they become batches. Deterministic throughout."""
