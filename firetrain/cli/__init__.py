"""The commands: they parse and print; what they do is imported when they do it."""
