"""`python -m firetrain`, the same as the `firetrain` command."""

from firetrain.cli.main import main

if __name__ == "__main__":  # a decoding process imports this module again
    main()
