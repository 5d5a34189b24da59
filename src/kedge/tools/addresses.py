"""Classification of IP addresses: public, or of this machine and its networks."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

Address = IPv4Address | IPv6Address

#: From the special-purpose registries of the IANA. Listed here, since versions of Python differ.
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "168.63.129.16/32",  # looks public, but is a metadata service of one large cloud
        ),
    )
)
#: The only allocated part of IPv6: no loopback, link-local, mapped or compatible IPv4, or multicast.
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments; among them Teredo, which carries any IPv4 address
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
            "2002::/16",  # 6to4 also carries an IPv4 address
        ),
    )
)
#: Addresses of a translator end in an IPv4 address, which decides.
_NAT64 = IPv6Network("64:ff9b::/96")

#: Prefix lengths of an IPv6 link: the usual one, and the largest assigned to one customer. Bits.
LINK_BITS = 64
LINK_BITS_MIN = 48
#: Limit of a kernel table. With a thousand addresses it has some 100 kB. Characters.
PROC_CHARS_MAX = 4_000_000


def is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    return not any(address in network for network in _NOT_PUBLIC_4)


def is_reachable(address: Address) -> bool:
    """Return whether an address is public and not our own. Reads kernel files: call it in a thread."""
    return is_public(address) and not is_own(address)


def is_own(address: Address) -> bool:
    """Return whether an address leads to this machine or, with IPv6, into one of its networks.

    A service that listens on all addresses, or trusts its network, can be reached by a public address of the machine,
    as by 127.0.0.1. `bind` would find that out, too, but not if `ip_nonlocal_bind` is set."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return is_own(IPv4Address(address.packed[-4:]))
    if any(address in network for network in own_networks()):
        return True
    # For networks that are routed to this machine as a whole, and systems without these files.
    source = _source_for(address)
    return source is not None and address in _around(source)


def own_networks(proc: Path = Path("/proc/net")) -> list[IPv4Network | IPv6Network]:
    """Return the addresses of this machine (IPv4) and the networks of its links (IPv6)."""
    networks: list[IPv4Network | IPv6Network] = []
    with suppress(OSError), open(proc / "fib_trie", encoding="ascii") as file:
        leaf = ""
        for line in file.read(PROC_CHARS_MAX).splitlines():
            first, *rest = line.split()
            if first == "|--":
                leaf = rest[0]
            elif "LOCAL" in rest:  # one leaf may have several lines, one for each length: "/32 host LOCAL"
                networks.append(IPv4Network((leaf, int(first[1:])), strict=False))
    with suppress(OSError), open(proc / "if_inet6", encoding="ascii") as file:
        for line in file.read(PROC_CHARS_MAX).splitlines():
            own, _, length, *_ = line.split()
            networks.append(_around(IPv6Address(int(own, 16)), int(length, 16)))
    return networks


def _around(own: Address, length: int = 128) -> IPv4Network | IPv6Network:
    """Return the network of an own address. IPv4: only the address, since neighbours are strangers at most hosters.
    IPv6: its link, a /64 or larger. A wrong length must not block half of the Internet."""
    if isinstance(own, IPv4Address):
        return IPv4Network(own)
    return IPv6Network((own, min(max(length, LINK_BITS_MIN), LINK_BITS)), strict=False)


def _source_for(address: Address) -> Address | None:
    """Return the source address of a connection; to ourselves it is the same address. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return parse_address(probe.getsockname()[0])
    except OSError:  # no route or no such family: unreachable
        return None


def parse_address(text: str) -> Address:
    """Parse an address of the resolver, which may have a zone (`fe80::1%eth0`). ValueError if it is invalid."""
    return ip_address(text.partition("%")[0])
