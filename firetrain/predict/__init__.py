"""What more ranks would do, foretold from what was measured on a few: without torch, on a login node."""
