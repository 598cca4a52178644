"""`python -m firetrain`, the same as the `firetrain` command."""

if __name__ == "__main__":  # a decoding process imports this module again
    from firetrain.cluster.parent import end_with_launcher

    end_with_launcher()  # before the imports, which take seconds

    from firetrain.cli.main import main

    main()
