"""`python -m firetrain`, the same as the `firetrain` command."""

from firetrain.cli.main import main

main()
