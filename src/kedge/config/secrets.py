"""Secrets of the configuration. They are looked up when they are used, and never displayed.

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
    """Return the secret that a value of the configuration refers to."""
    if value.startswith(KEYRING):
        return _from_keyring(value)
    if not value.startswith("$"):
        return value
    if result := environment.get(value[1:]):
        return result
    raise BadConfig(f"{_not_set(value)} Set it and restart the server (`kedge stop`).")


def missing(value: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why the secret is missing, or None. Does not open the keyring, which may prompt the user."""
    if value.startswith(KEYRING):
        return None if find_spec("keyring") else _no_keyring(value)
    return _not_set(value) if value.startswith("$") and not environment.get(value[1:]) else None


def _not_set(value: str) -> str:
    # Anything that does not look like a variable's name may be a key that starts with a dollar sign.
    name = "in api_key" if masked_secret(value) == MASK else value[1:]
    return f"The environment variable {name} is not set; it should hold the API key."


def _no_keyring(value: str) -> str:
    return f"{_entry_name(value)} needs the package keyring: install kedge[keyring], or use a variable ($NAME)."


def _entry_name(value: str) -> str:
    return "The entry in api_key" if masked_secret(value) == MASK else value


def _from_keyring(value: str) -> str:
    service, _, user = value.removeprefix(KEYRING).partition("/")
    if not service or not user:
        raise BadConfig("Write a key from the keyring as keyring:SERVICE/USER.")
    try:
        keyring = import_module("keyring")  # an optional extra, and slow to import
    except ImportError:
        raise BadConfig(_no_keyring(value)) from None
    try:
        password: str | None = keyring.get_password(service, user)
    except Exception as error:  # backends raise their own types, and the text may hold a secret
        reason = type(error).__name__
        raise BadConfig(f"{_entry_name(value)} cannot be read from the keyring: {reason}. Is it unlocked?") from None
    if not password:
        raise BadConfig(f"{_entry_name(value)} is not in the keyring; add it with `keyring set {service} {user}`.")
    return password
