"""REQUEST → MAY IT ENTER: the API key, and guards against other web pages.

A service on loopback without a key can still be reached by a browser that shows somebody else's page. Such a page
cannot send JSON across origins without being allowed to, and it cannot choose an address as host name: requests that
change labels must therefore be JSON, from the same origin, and to an address or localhost.
"""

from __future__ import annotations

import hashlib
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from longtail.serve.messages import Refusal, Scope, header
from longtail.serve.settings import Settings, is_loopback


class Access:
    """Who may ask, and who may change."""

    def __init__(self, settings: Settings) -> None:
        self._key = None if settings.api_key is None else _digest(settings.api_key.strip().encode())
        self._only_here = settings.loopback

    def check(self, scope: Scope) -> None:
        """Refuse a request without the key, when there is one."""
        if self._key is None:
            return
        given = header(scope, b"x-api-key")
        bearer = header(scope, b"authorization")
        if given is None and bearer is not None:
            scheme, _, token = bearer.partition(b" ")
            given = token if scheme.lower() == b"bearer" else None
        # Digests are compared, so that not even the length of the key shows in the time.
        if given is None or not hmac.compare_digest(_digest(given.strip()), self._key):
            raise Refusal(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer … or X-API-Key",
                (b"www-authenticate", b"Bearer"),
            )

    def check_change(self, scope: Scope) -> None:
        """Refuse a change that another web page may have sent."""
        if scope["method"] == "POST":
            kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Refusal(415, "send the body as Content-Type: application/json")
        host = (header(scope, b"host") or b"").decode("latin-1").lower()
        origin = header(scope, b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc.lower() != host:
            raise Refusal(403, "labels can be changed from the service's own page only")
        if self._key is None and self._only_here and not _plain_address(host):
            raise Refusal(403, "labels can be changed at localhost or an IP address only, unless there is an API key")


def _digest(key: bytes) -> bytes:
    """Hash a key."""
    return hashlib.sha256(key).digest()


def _plain_address(host: str) -> bool:
    """Tell whether a Host header names localhost or an address, with or without a port.

    >>> [_plain_address(host) for host in ("localhost:8000", "[::1]:80", "192.168.0.2", "evil.example:8000")]
    [True, True, True, False]
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) or bool(ip_address(name))
    except ValueError:
        return False
