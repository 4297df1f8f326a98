"""Which host names and addresses can only mean this machine."""

from __future__ import annotations

import ipaddress

LOOPBACK_NAMES: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
"""Hosts that a server without API keys may bind, and ``Host`` names that it answers to; so are loopback addresses."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
