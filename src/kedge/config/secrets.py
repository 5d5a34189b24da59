"""Secrets: where they are kept, and what to do when they are not there. They are looked up when used, never shown.

"$NAME"                  the environment variable NAME of the server
"keyring:SERVICE/USER"   the keyring of this machine, with the extra kedge[keyring]
anything else            the secret itself
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from kedge.config.schema import MASK, masked_secret
from kedge.errors import BadConfig

KEYRING = "keyring:"


def secret(value: str, environment: Mapping[str, str] = os.environ) -> str:
    """The secret that the configuration's value stands for."""
    if value.startswith(KEYRING):
        return _from_keyring(value)
    if not value.startswith("$"):
        return value
    if found := environment.get(value[1:]):
        return found
    raise BadConfig(f"{_not_set(value)} It counts where the server was started (`kedge stop`, and start it anew).")


def missing(value: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Why the secret cannot be had, as far as this can be told without opening a keyring (which may ask a person)."""
    if value.startswith(KEYRING):
        return None if find_spec("keyring") else _no_keyring(value)
    return _not_set(value) if value.startswith("$") and not environment.get(value[1:]) else None


def _not_set(value: str) -> str:
    # What does not look like a variable's name may be a key that happens to begin with a dollar sign.
    name = "that api_key names" if masked_secret(value) == MASK else value[1:]
    return f"The environment variable {name} is not set; it should hold the API key."


def _no_keyring(value: str) -> str:
    return f"{_named(value)} needs the package keyring: install kedge[keyring], or name a variable as $NAME."


def _named(value: str) -> str:
    return "The entry that api_key names" if masked_secret(value) == MASK else value


def _from_keyring(value: str) -> str:
    service, _, user = value.removeprefix(KEYRING).partition("/")
    if not service or not user:
        raise BadConfig("A key from the keyring is written as keyring:SERVICE/USER.")
    try:
        keyring = import_module("keyring")  # an extra: it may not be there, and opening it is slow
    except ImportError:
        raise BadConfig(_no_keyring(value)) from None
    try:
        found: str | None = keyring.get_password(service, user)
    except Exception as error:  # each backend has errors of its own; their text may hold anything
        reason = type(error).__name__
        raise BadConfig(f"{_named(value)} cannot be read: the keyring says {reason}. Is it unlocked?") from None
    if not found:
        raise BadConfig(f"{_named(value)} is not in the keyring; add it with `keyring set {service} {user}`.")
    return found
