"""The names of users."""

from __future__ import annotations

import pytest

from kedge.core.users import USER_NAME_CHARS_MAX, check_user_name
from kedge.errors import Invalid


@pytest.mark.parametrize("name", ["eve", "e.v-e_2", "x" * USER_NAME_CHARS_MAX])
def test_valid_names_are_returned(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("name", ["", ".eve", "e ve", "eve\n", "a:b", "x" * (USER_NAME_CHARS_MAX + 1)])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="is not a valid name of a user"):
        check_user_name(name)
