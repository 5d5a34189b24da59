from __future__ import annotations

import pytest

from kedge.agent import active_run


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Run fails at the first failure of the store, as it does after a minute without one."""
    monkeypatch.setattr(active_run, "STORE_ATTEMPTS_MAX", 1)
