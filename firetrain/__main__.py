"""The `firetrain` command, and `python -m firetrain`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command. Ctrl-C during its imports, which take up to a second, ends the process without a traceback."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:  # otherwise it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from firetrain.cluster.parent import end_with_launcher

    end_with_launcher()
    from firetrain.cli.garbage import collect_rarely

    collect_rarely()
    from firetrain.cli.main import main as run

    signal.signal(signal.SIGINT, on_interrupt)
    run()


if __name__ == "__main__":  # a decoding process imports this module again
    main()
