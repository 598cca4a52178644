"""The `doctor` command."""

from __future__ import annotations

import click

from firetrain.cli.options import echo_json, json_option


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show what is installed here, and how to install the rest.

    Exit code 78 if a required component is missing.

    \b
    Example:
      firetrain doctor
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from firetrain.doctor import examine

    findings = list(examine())
    if as_json:
        echo_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "found", "for"):
            table.add_column(heading)
        for finding in findings:
            found = finding.found if finding.here else f"[yellow]{finding.remedy}[/yellow]"
            table.add_row(finding.name, found, finding.purpose)
        Console().print(table, highlight=False)
    if any(finding.needed and not finding.here for finding in findings):
        ctx.exit(78)
