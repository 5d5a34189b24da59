"""The options of a Run on the command line, for `kedge run` and `kedge init`."""

from __future__ import annotations

import math

import click

from kedge.cli.approval_prompts import can_prompt
from kedge.cli.options import F, effort_option
from kedge.client.client import new_run_id
from kedge.client.sync_client import RunSettings
from kedge.core.approvals import parse_rule
from kedge.core.modes import MODES
from kedge.core.rule_mistakes import check_rules
from kedge.errors import Invalid
from kedge.wire.models import SubmitPrompt


def positive(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("must be a number above 0", context, option)
    return value


def _rules(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    try:
        check_rules(values if option.name == "allow" else (), values if option.name == "deny" else ())
        return [str(parse_rule(value)) for value in values]
    except Invalid as error:
        raise click.BadParameter(error.message, context, option) from None


#: The names of the parameters are those of RunSettings.
_OPTIONS = (
    click.option(
        "-m",
        "--model",
        metavar="PROVIDER/MODEL",
        envvar="KEDGE_MODEL",
        help="Use this model instead of the configured one (also $KEDGE_MODEL).",
    ),
    effort_option,
    click.option(
        "--timeout", "timeout_s", metavar="S", type=float, callback=positive, help="Stop the run after S seconds."
    ),
    click.option("--max-steps", metavar="N", type=click.IntRange(min=1), help="Stop the run after N steps."),
    click.option(
        "--budget",
        "budget_usd",
        metavar="USD",
        type=float,
        callback=positive,
        help="Stop the run when its cost reaches this many US dollars.",
    ),
    click.option(
        "--allow",
        metavar="RULE",
        multiple=True,
        callback=_rules,
        help="Allow without asking: 'bash(npm test)', 'edit(src/**)', 'fetch'. Repeatable.",
    ),
    click.option(
        "--deny", metavar="RULE", multiple=True, callback=_rules, help="Never allow; overrides --allow. Repeatable."
    ),
    click.option(
        "--mode",
        type=click.Choice(MODES),
        help="What the run may do without asking. Default: the session's mode. See docs/modes.md.",
    ),
    click.option("--yolo", "mode", flag_value="yolo", help="Short for --mode yolo: only deny rules stop anything."),
)


def run_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def new_prompt(text: str, settings: RunSettings) -> SubmitPrompt:
    """Return the prompt of a new Run, whose approvals are answered on this terminal, or else end it."""
    settings.setdefault("on_approval", "ask" if can_prompt() else "fail")
    return SubmitPrompt(prompt=text, run_id=new_run_id(), **settings)
