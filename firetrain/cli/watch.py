"""The `watch` command."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import Number


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--every", "every_s", type=Number(0.2, 86400), default=1.0, show_default=True, help="Refresh interval in seconds."
)
def watch(path: Path, every_s: float) -> None:
    """Watch RUN on the full screen until it ends.

    Ctrl-C stops watching, not the run. Without a terminal, the screen is printed once.

    \b
    Example:
      firetrain watch results/squeezenet-digits-20260102-030405-1a2b3c4d
    """
    import time
    from contextlib import suppress

    from rich.console import Console, RenderableType
    from rich.live import Live

    from firetrain.launch.site import load_site
    from firetrain.launch.status import state_of
    from firetrain.records import Run
    from firetrain.report.screen import screen

    run, console = Run.open(path), Console()
    config, ask_every_s = run.config(), load_site(run.facts().get("site", "generic")).poll_every_s

    def look() -> tuple[bool, RenderableType]:
        state = state_of(run, ask_every_s)
        steps, evaluations = run.metrics("step"), run.metrics("evaluation")
        return state.ended, screen(run.name, state.text, config.target, steps, evaluations, console.width)

    ended, shown = look()
    if console.is_terminal and not ended:
        with suppress(KeyboardInterrupt), Live(shown, console=console, screen=True, auto_refresh=False) as live:
            while not ended:
                time.sleep(every_s)
                ended, shown = look()
                live.update(shown, refresh=True)
    console.print(shown)
