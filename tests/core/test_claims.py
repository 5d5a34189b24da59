"""Claims on a workspace. A3: releases in any number and order cannot underflow a count."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kedge.core.claims import GRACE_S, HOLD_S, Claim, Claims

HOLD = int(HOLD_S * 1000)
GRACE = int(GRACE_S * 1000)
EMPTY = Claims()

CLIENTS = st.sampled_from(["ann", "ben"])
STREAMS = st.sampled_from(["s1", "s2"])

#: One change of claims; the number is the time it happens at.
Change = Callable[[Claims, int], Claims]


def described(text: str, change: Change) -> Change:
    change.__name__ = text
    return change


LETTING_GO = st.one_of(
    st.builds(lambda c: described(f"release {c}", lambda claims, _: claims.released(c)), CLIENTS),
    st.builds(lambda c: described(f"drop {c}", lambda claims, _: claims.dropped(c)), CLIENTS),
    st.builds(
        lambda c, s: described(f"close {s} of {c}", lambda claims, now: claims.stream_closed(c, s, now)),
        CLIENTS,
        STREAMS,
    ),
    st.just(described("lapse", lambda claims, now: claims.lapsed(now))),
)
TAKING = st.one_of(
    st.builds(lambda c: described(f"open by {c}", lambda claims, now: claims.opened(c, now)), CLIENTS),
    st.builds(
        lambda c, s: described(f"stream {s} of {c}", lambda claims, _: claims.stream_opened(c, s)), CLIENTS, STREAMS
    ),
)


def after(*changes: Change) -> Claims:
    """The claims after these changes, one second apart."""
    claims = EMPTY
    for number, change in enumerate(changes):
        claims = change(claims, number * 1000)
        for claim in claims.by_client.values():
            # A claim either has a stream or a time at which it lapses: none is held for ever by mistake.
            assert (claim.until is None) == bool(claim.streams)
            assert not (claim.released and not claim.streams)
    return claims


@given(st.lists(LETTING_GO, max_size=30))
def test_letting_go_of_what_was_never_held_changes_nothing(changes: list[Change]) -> None:
    claims = after(*changes)
    assert claims == EMPTY
    assert not claims.held


@given(st.lists(LETTING_GO | TAKING, max_size=30), st.lists(LETTING_GO, max_size=10))
def test_one_open_holds_after_any_number_of_releases(before: list[Change], again: list[Change]) -> None:
    """With a counter that underflows, too many releases would make the next hold count for nothing."""
    claims = after(*before, *again)
    assert claims.opened("cat", 0).has("cat")
    assert claims.opened("cat", 0).held
    assert not claims.opened("cat", 0).dropped("cat").has("cat")


@given(st.lists(LETTING_GO | TAKING, max_size=30))
def test_releasing_twice_is_releasing_once(before: list[Change]) -> None:
    claims = after(*before)
    assert claims.released("ann").released("ann") == claims.released("ann")
    assert claims.dropped("ann").dropped("ann") == claims.dropped("ann")
    closed = claims.stream_closed("ann", "s1", 5)
    assert closed.stream_closed("ann", "s1", 99_000) == closed


@given(st.lists(LETTING_GO | TAKING, max_size=30))
def test_what_one_client_does_leaves_the_others_alone(before: list[Change]) -> None:
    claims = after(*before)
    other = claims.by_client.get("ben")
    for changed in (
        claims.opened("ann", 1),
        claims.stream_opened("ann", "s1"),
        claims.stream_closed("ann", "s1", 1),
        claims.released("ann"),
        claims.dropped("ann"),
    ):
        assert changed.by_client.get("ben") == other


@given(st.lists(LETTING_GO | TAKING, max_size=30), st.integers(0, 100_000))
def test_next_lapse_is_when_looking_again_pays(before: list[Change], now: int) -> None:
    claims = after(*before)
    due = claims.next_lapse
    changes = claims.lapsed(now) != claims
    assert changes == (due is not None and due <= now)
    left = claims.lapsed(now).next_lapse
    assert left is None or left > now


@given(st.lists(LETTING_GO | TAKING, max_size=30))
def test_closing_every_stream_and_waiting_ends_every_claim(before: list[Change]) -> None:
    claims = after(*before)
    for client, claim in claims.by_client.items():
        for stream in claim.streams:
            claims = claims.stream_closed(client, stream, 50_000)
    assert not claims.lapsed(50_000 + HOLD).held


def test_a_create_holds_for_the_hold_time() -> None:
    claims = EMPTY.opened("ann", 1000)
    assert claims.by_client == {"ann": Claim(until=1000 + HOLD)}
    assert claims.next_lapse == 1000 + HOLD
    assert claims.lapsed(1000 + HOLD - 1) is claims
    assert not claims.lapsed(1000 + HOLD).held


def test_a_second_create_holds_anew() -> None:
    assert EMPTY.opened("ann", 0).opened("ann", 5000).next_lapse == 5000 + HOLD


def test_stream_takes_over_the_claim_without_a_deadline() -> None:
    claims = EMPTY.opened("ann", 0).stream_opened("ann", "s1")
    assert claims.next_lapse is None
    assert claims.lapsed(10**15).held


def test_a_create_while_a_stream_is_open_sets_no_time() -> None:
    assert EMPTY.stream_opened("ann", "s1").opened("ann", 0).by_client == {"ann": Claim(frozenset({"s1"}))}


def test_last_dropped_stream_starts_the_grace_period() -> None:
    both = EMPTY.stream_opened("ann", "s1").stream_opened("ann", "s2")
    one = both.stream_closed("ann", "s1", 1000)
    assert one.next_lapse is None
    none = one.stream_closed("ann", "s2", 2000)
    assert none.next_lapse == 2000 + GRACE
    assert none.lapsed(2000 + GRACE - 1).has("ann")
    assert not none.lapsed(2000 + GRACE).has("ann")
    assert none.stream_opened("ann", "s3").next_lapse is None


def test_a_release_without_a_stream_ends_the_claim_at_once() -> None:
    assert not EMPTY.opened("ann", 0).released("ann").held


def test_release_ends_the_claim_with_the_last_stream() -> None:
    claims = EMPTY.stream_opened("ann", "s1").stream_opened("ann", "s2").released("ann")
    assert claims.held
    claims = claims.stream_closed("ann", "s1", 0)
    assert claims.held
    assert not claims.stream_closed("ann", "s2", 0).held


def test_a_create_takes_a_release_back() -> None:
    claims = EMPTY.stream_opened("ann", "s1").released("ann").opened("ann", 0).stream_closed("ann", "s1", 1000)
    assert claims.next_lapse == 1000 + GRACE


def test_dropping_a_client_drops_its_open_streams_too() -> None:
    claims = EMPTY.stream_opened("ann", "s1").opened("ben", 0).dropped("ann")
    assert not claims.has("ann")
    assert claims.has("ben")


def test_the_close_of_a_dropped_clients_stream_changes_nothing() -> None:
    claims = EMPTY.stream_opened("ann", "s1").dropped("ann")
    assert claims.stream_closed("ann", "s1", 0) is claims


def test_the_earliest_of_several_times_comes_next() -> None:
    claims = EMPTY.opened("ann", 3000).opened("ben", 1000).stream_opened("cat", "s1")
    assert claims.next_lapse == 1000 + HOLD
    assert claims.lapsed(1000 + HOLD).next_lapse == 3000 + HOLD


def test_the_times_can_be_chosen() -> None:
    claims = Claims(hold_ms=5, grace_ms=3)
    assert claims.opened("ann", 0).next_lapse == 5
    assert claims.stream_opened("ann", "s1").stream_closed("ann", "s1", 0).next_lapse == 3
