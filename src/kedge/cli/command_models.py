"""`kedge models`: the models of the configured providers. It needs no server and no network."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import Struct

from kedge.cli.config_files import config_problem, load_config
from kedge.cli.options import cwd_option, examples, json_option
from kedge.cli.printing import print_json, print_table
from kedge.client.safe_text import one_line
from kedge.client.view.number_text import token_count
from kedge.config.model_names import ModelListing, list_models, resolve_model
from kedge.core.records import OFFLINE
from kedge.errors import BadConfig


class ModelRow(Struct):
    """A model for `--model`. None means unknown."""

    model: str
    provider: str
    context_window: int | None = None
    #: US dollars per million tokens.
    input_price: float | None = None
    output_price: float | None = None
    images: bool | None = None
    is_large: bool = False
    is_small: bool = False
    note: str = ""


@click.command(epilog=examples("kedge models", "kedge models --json | jq -r '.[].model'", "kedge run -m NAME 'Hello'"))
@json_option
@cwd_option
def models(as_json: bool, cwd: str) -> int:
    """List the models you can use.

    CONTEXT is in tokens, IN and OUT are US dollars per million tokens. USE marks the configured models: large for
    runs, small for session titles."""
    config = load_config(Path(cwd)).config  # fails if the user's file is not valid
    if problem := config_problem(cwd):
        click.echo(f"kedge: {one_line(problem, 1000)}", err=True)
    rows = [_row(listing) for listing in list_models(config)]
    if as_json:
        print_json(rows)
    else:
        print_table(("MODEL", "CONTEXT", "IN", "OUT", "IMAGES", "USE"), [_cells(row) for row in rows])
    large = config.model or OFFLINE
    for name in dict.fromkeys((large, config.small_model or large)):
        if name not in {row.model for row in rows}:
            try:
                resolve_model(config, name)
            except BadConfig as error:
                click.echo(f"kedge: {one_line(error.message, 1000)}", err=True)
    return 0


def _row(listing: ModelListing) -> ModelRow:
    facts = listing.facts
    return ModelRow(
        model=listing.name,
        provider=listing.provider_name,
        context_window=facts.context_window,
        input_price=facts.price.input if facts.price else None,
        output_price=facts.price.output if facts.price else None,
        images=facts.takes_images,
        is_large=listing.is_default,
        is_small=listing.is_small,
        note=listing.description,
    )


def _cells(row: ModelRow) -> tuple[str, ...]:
    use = " and ".join(word for word, is_used in (("large", row.is_large), ("small", row.is_small)) if is_used)
    return (
        one_line(row.model, 100),
        "-" if row.context_window is None else token_count(row.context_window),
        _usd(row.input_price),
        _usd(row.output_price),
        {True: "yes", False: "no", None: "-"}[row.images],
        ", ".join(part for part in (use, row.note) if part),
    )


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}" if price >= 0.1 or price == 0 else f"{price:.3g}"
