"""Which addresses are out on the Internet. Everything else is this machine, its network, or nobody's."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

#: From the special-purpose registries of the IANA; listed here so that every Python decides alike.
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
            "168.63.129.16/32",  # looks public, and is the machine's own service on one large cloud
        ),
    )
)
#: Of IPv6 only this is given out at all: no loopback, no link-local, no mapped or compatible IPv4, no multicast.
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments; Teredo is among them, and carries an IPv4 address of anybody's choice
            *("2001:db8::/32", "3fff::/20"),  # documentation
            "2002::/16",  # 6to4 carries an IPv4 address, too
        ),
    )
)
#: A translator's addresses end in the IPv4 address they stand for: that one decides.
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    return not any(address in network for network in _NOT_PUBLIC_4)


def parse_address(text: str) -> Address:
    """As the resolver writes them, a zone (`fe80::1%eth0`) included. ValueError when it is none."""
    return ip_address(text.partition("%")[0])
