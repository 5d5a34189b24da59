"""Redirects to addresses that fetch must refuse, by address and by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.tools.addresses import Address, is_public
from kedge.tools.base import ToolContext, ToolFailed
from kedge.tools.fetch import FetchTool
from tests.tools.contexts import call, make_context
from tests.tools.test_fetch import NOT_PUBLIC, Site, names, site

__all__ = ["site"]


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return make_context(tmp_path)


def or_this_site(found: Address) -> bool:
    """The real check, and the one address of the site that redirects."""
    return str(found) == "127.0.0.1" or is_public(found)


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_redirect_to_an_address_that_is_not_public_is_refused(
    site: Site, context: ToolContext, address: str
) -> None:
    """A literal address is another host: it is reported or refused, and not contacted."""
    host = f"[{address.partition('%')[0]}]" if ":" in address else address
    site.redirect("/", f"http://{host}:{site.port}/secret")
    site.put("/secret", "secret")
    tool = FetchTool(or_this_site, names("127.0.0.1"))
    try:
        said = (await call(tool, context, url=f"http://site.example:{site.port}/")).content
    except ToolFailed as refused:
        said = str(refused)
    assert "secret" not in said.replace("/secret", "")
    assert len(site.asked) == 1


@pytest.mark.parametrize("address", [address for address in NOT_PUBLIC if address != "127.0.0.1"])
async def test_rebound_host_is_refused_at_the_redirect(site: Site, context: ToolContext, address: str) -> None:
    site.redirect("/", "/secret")
    site.put("/secret", "secret")
    tool = FetchTool(or_this_site, names("127.0.0.1", address))
    with pytest.raises(ToolFailed, match="which is not public"):
        await call(tool, context, url=f"http://site.example:{site.port}/")
    assert len(site.asked) == 1
