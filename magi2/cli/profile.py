"""`magi2 profile`: what profiles there are, and what one resolves to."""

from __future__ import annotations

import typer
import yaml

from magi2.cli.console import print_json
from magi2.config.load import load_profile, profile_names
from magi2.config.settings import Settings

app = typer.Typer(help="Look at profiles.", no_args_is_help=True)


@app.command("show")
def show(
    name: str = typer.Argument(help="Profile of configs/profiles, or a path to a .yaml file."),
    overrides: list[str] = typer.Option([], "--set", help="Change a value, as in refiner.steps=8."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of YAML."),
) -> None:
    """Print a profile with every value resolved, and its digest."""
    profile = load_profile(name, Settings.from_environment().configs, overrides)
    content = {**profile.model_dump(mode="json"), "digest": profile.digest()}
    if as_json:
        print_json(content)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True).rstrip())


@app.command("list")
def list_profiles() -> None:
    """Print the profiles, what they are for and whether they are experimental."""
    configs = Settings.from_environment().configs
    for name in profile_names(configs):
        profile = load_profile(name, configs)
        typer.echo(f"{name:<16}{profile.description}{'; experimental' if profile.experimental else ''}")
