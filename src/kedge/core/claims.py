"""Claims: the clients that keep a workspace open. Pure bookkeeping; the engine owns the timers.

Opening a workspace claims it for a while; the client's first stream takes over. When its last stream drops, the claim
lasts for a grace period, or ends at once if the client has released it. The engine adds the claims of live Runs.
Releasing twice, or without a claim, changes nothing: there is no counter to underflow.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

#: Time for a new client to open its stream after it created the workspace. Seconds.
HOLD_S = 30.0
#: Time for a client whose stream dropped to reconnect. Seconds.
GRACE_S = 10.0


class Claim(Struct, frozen=True):
    """One client's hold. `until` is the time (ms) it lapses; None while a stream is open."""

    streams: frozenset[str] = frozenset()
    until: int | None = None
    released: bool = False


class Claims(Struct, frozen=True):
    hold_ms: int = int(HOLD_S * 1000)
    grace_ms: int = int(GRACE_S * 1000)
    by_client: dict[str, Claim] = field(default_factory=dict)

    def opened(self, client_id: str, now: int) -> Claims:
        """Record that the client created or re-created the workspace."""
        claim = self.by_client.get(client_id, Claim())
        return self._with(
            client_id, replace(claim, until=None if claim.streams else now + self.hold_ms, released=False)
        )

    def stream_opened(self, client_id: str, stream_id: str) -> Claims:
        claim = self.by_client.get(client_id, Claim())
        return self._with(client_id, replace(claim, streams=claim.streams | {stream_id}, until=None))

    def stream_closed(self, client_id: str, stream_id: str, now: int) -> Claims:
        claim = self.by_client.get(client_id)
        if claim is None or stream_id not in claim.streams:
            return self
        rest = claim.streams - {stream_id}
        if rest:
            return self._with(client_id, replace(claim, streams=rest))
        if claim.released:
            return self._without(client_id)
        return self._with(client_id, replace(claim, streams=rest, until=now + self.grace_ms))

    def released(self, client_id: str) -> Claims:
        """Record that the client released the workspace. With an open stream, the claim ends with its last stream."""
        claim = self.by_client.get(client_id)
        if claim is None:
            return self
        return self._with(client_id, replace(claim, released=True)) if claim.streams else self._without(client_id)

    def dropped(self, client_id: str) -> Claims:
        """Drop the client's claim, including its open streams."""
        return self._without(client_id)

    def lapsed(self, now: int) -> Claims:
        """Drop expired claims."""
        alive = {client: claim for client, claim in self.by_client.items() if claim.until is None or claim.until > now}
        return self if len(alive) == len(self.by_client) else replace(self, by_client=alive)

    @property
    def held(self) -> bool:
        return bool(self.by_client)

    @property
    def next_lapse(self) -> int | None:
        """The earliest time (ms) at which `lapsed` may change something."""
        return min((claim.until for claim in self.by_client.values() if claim.until is not None), default=None)

    def has(self, client_id: str) -> bool:
        return client_id in self.by_client

    def _with(self, client_id: str, claim: Claim) -> Claims:
        return replace(self, by_client={**self.by_client, client_id: claim})

    def _without(self, client_id: str) -> Claims:
        return replace(self, by_client={key: claim for key, claim in self.by_client.items() if key != client_id})
