"""`kedge models`. It reads the configuration and the catalogue; no server and no provider is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from kedge import paths
from kedge.cli.options import cwd_option, examples, json_option
from kedge.cli.printing import print_json, print_table
from kedge.client.safe_text import one_line
from kedge.core.records import OFFLINE

if TYPE_CHECKING:
    from kedge.config.model_names import ModelListing


class ModelLine(Struct):
    """A model that a Run can be given with `--model`. None is: not known."""

    model: str
    provider: str
    context_window: int | None = None
    #: US dollars per million tokens.
    input_price: float | None = None
    output_price: float | None = None
    images: bool | None = None
    is_large: bool = False
    is_small: bool = False
    about: str = ""


@click.command(epilog=examples("kedge models", "kedge models --json | jq -r '.[].model'", "kedge run -m NAME 'Hello'"))
@json_option
@cwd_option
def models(as_json: bool, cwd: str) -> int:
    """List the models of your providers: how much they hold, and US dollars per million tokens in and out.

    Those that are chosen are marked: large for the work itself, small for titles."""
    from kedge.config.load import layered, user_layer
    from kedge.config.model_names import list_models, resolve_model
    from kedge.config.trust import FILE_NAME, Trust
    from kedge.errors import BadConfig

    trust = Trust(paths.data_dir() / FILE_NAME)
    config = layered(user_layer(paths.config_file()), Path(cwd), trust, strict=False).config
    found = [_line(offer) for offer in list_models(config)]
    if as_json:
        print_json(found)
    else:
        print_table(("MODEL", "CONTEXT", "IN", "OUT", "IMAGES", "USE"), [_row(line) for line in found])
    large = config.model or OFFLINE
    for name in dict.fromkeys((large, config.small_model or large)):
        if name not in {line.model for line in found}:
            try:
                resolve_model(config, name)
            except BadConfig as error:
                click.echo(f"kedge: {one_line(error.message, 1000)}", err=True)
    return 0


def _line(offer: ModelListing) -> ModelLine:
    facts = offer.facts
    return ModelLine(
        model=offer.name,
        provider=offer.provider_name,
        context_window=facts.context_window,
        input_price=facts.price.input if facts.price else None,
        output_price=facts.price.output if facts.price else None,
        images=facts.takes_images,
        is_large=offer.is_default,
        is_small=offer.is_small,
        about=offer.about,
    )


def _row(line: ModelLine) -> tuple[str, ...]:
    use = " and ".join(word for word, holds in (("large", line.is_large), ("small", line.is_small)) if holds)
    return (
        one_line(line.model, 100),
        _tokens(line.context_window),
        _usd(line.input_price),
        _usd(line.output_price),
        {True: "yes", False: "no", None: "-"}[line.images],
        ", ".join(part for part in (use, line.about) if part),
    )


def _tokens(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1_000_000:g}M" if count >= 1_000_000 else f"{count / 1000:.4g}k"


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}" if price >= 0.1 or price == 0 else f"{price:.3g}"
