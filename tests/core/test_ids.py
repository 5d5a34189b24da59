"""Validation of identifiers."""

from __future__ import annotations

from urllib.parse import quote, unquote
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.core.ids import RUN_ID_CHARS_MAX, check_client_id, check_run_id
from kedge.errors import BadClientId, KedgeError, WrongType


@pytest.mark.parametrize(
    "run_id",
    [
        "a",
        "0",
        "...",
        "7f3c9d2e-5b1a-4c8e-9f00-0123456789ab",
        "ci:main@42+build~1.2_3",
        "x" * RUN_ID_CHARS_MAX,
    ],
)
def test_a_run_id_of_plain_characters_is_taken_as_it_stands(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id",
    ["", " ", "a b", "a/b", "a?b", "a#b", "a%20b", "ä", "a\n", "\na", "a\0", "a\\b", "名", "a\u202eb", ".", ".."],
)
def test_a_run_id_of_other_characters_is_refused(run_id: str) -> None:
    with pytest.raises(WrongType, match=r"may contain only letters, digits and \. _ ~ @ : \+ -"):
        check_run_id(run_id)


def test_a_run_id_that_is_too_long_is_refused_with_both_lengths() -> None:
    with pytest.raises(WrongType, match="run_id has 129 characters; at most 128 are allowed"):
        check_run_id("x" * (RUN_ID_CHARS_MAX + 1))


@given(st.text(max_size=200))
def test_every_accepted_run_id_is_one_part_of_a_url_path(run_id: str) -> None:
    try:
        check_run_id(run_id)
    except KedgeError:
        return
    # The characters that RFC 3986 lets stand for themselves in a path: unreserved, and @ : + of the rest.
    assert quote(run_id, safe="@:+") == run_id == unquote(run_id)
    assert run_id not in ("", ".", "..")
    assert len(run_id) <= RUN_ID_CHARS_MAX


def test_a_client_id_is_a_uuid_and_is_kept_in_lower_case() -> None:
    assert check_client_id("7F3C9D2E-5B1A-4C8E-9F00-0123456789AB") == "7f3c9d2e-5b1a-4c8e-9f00-0123456789ab"


@given(st.uuids())
def test_every_uuid_is_a_client_id(uuid: UUID) -> None:
    assert check_client_id(str(uuid)) == str(uuid)
    assert check_client_id(str(uuid).upper()) == str(uuid)


@pytest.mark.parametrize(
    "client_id",
    [
        "",
        "me",
        "7f3c9d2e5b1a4c8e9f000123456789ab",
        "{7f3c9d2e-5b1a-4c8e-9f00-0123456789ab}",
        "urn:uuid:7f3c9d2e-5b1a-4c8e-9f00-0123456789ab",
        "7f3c9d2e-5b1a-4c8e-9f00-0123456789ab\n",
        "7f3c9d2e-5b1a-4c8e-9f00-0123456789ag",
        "7f3c9d2e-5b1a-4c8e-9f00-0123456789ab1",
        "\u0967f3c9d2e-5b1a-4c8e-9f00-0123456789ab",
    ],
)
def test_anything_else_is_no_client_id(client_id: str) -> None:
    with pytest.raises(BadClientId, match="client_id must be a UUID"):
        check_client_id(client_id)
