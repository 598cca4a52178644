"""The `config` commands."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import config_argument, echo_json, json_option, refuse_given, set_option


@click.group()
def config() -> None:
    """List, show and check configs."""


@config.command("list")
@json_option
def list_configs(as_json: bool) -> None:
    """List the shipped configs, and the hardware each is meant for.

    \b
    Example:
      firetrain config list
    """
    from firetrain.config import shipped_configs

    lines = {name: path.read_text().partition("\n")[0].lstrip("# ") for name, path in shipped_configs().items()}
    if as_json:
        echo_json(lines)
        return
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        click.echo(f"{name:<{width}}  {line}")


@config.command()
@config_argument
@set_option
@click.option("--curve", is_flag=True, help="Plot the learning rate over the run as text.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot the learning rate to a file: .svg, .png or .pdf.",
)
@json_option
def show(config: str, overrides: tuple[str, ...], curve: bool, svg: Path | None, as_json: bool) -> None:
    """Show all values of CONFIG, and the origin of each.

    The origin is a line of the file, --set, or the default.

    \b
    Examples:
      firetrain config show quickstart --set batch.global_size=256
      firetrain config show googlenet-firecaffe --curve
    """
    from firetrain.config import load_config

    loaded = load_config(config, overrides)
    refuse_given({"--json": as_json and (curve or svg)}, "not with --curve or --svg")
    if curve or svg:
        from firetrain.report.curve import plot, text

        if curve:
            click.echo(text(loaded.config))
        if svg:
            plot(loaded.config, svg)
        return
    if as_json:
        echo_json({path: {"value": value, "from": origin} for path, value, origin in loaded.rows()})
        return
    click.echo(loaded.annotated(), nl=False)


@config.command()
@click.argument("configs", nargs=-1, required=True)
@set_option
@json_option
def check(configs: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check CONFIGS and list every mistake with file:line:column.

    \b
    Example:
      firetrain config check mine.yaml other.yaml
    """
    from firetrain.config import load_config
    from firetrain.errors import UserError

    mistakes: dict[str, str] = {}
    for name in configs:
        try:
            load_config(name, overrides)
        except UserError as error:
            mistakes[name] = str(error)
        else:
            if not as_json:
                click.echo(f"{name}: OK")
    if as_json:
        echo_json({name: mistakes.get(name, "").splitlines() for name in configs})
    if mistakes:
        raise UserError("\n".join(mistakes.values()))


@config.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors.

    \b
    Example:
      firetrain config schema > firetrain-schema.json
    """
    from firetrain.config import Config

    echo_json(Config.model_json_schema())
