"""The commands. They parse options and print; the modules that do the work are imported when needed."""
