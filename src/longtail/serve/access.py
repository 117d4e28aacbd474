"""REQUEST → ACCESS: the API key, and guards against requests that other web pages send.

A service on loopback without a key can still be reached by a browser that shows somebody else's page. Such a page
cannot send JSON across origins without being allowed to, and it cannot choose an address as host name: requests that
change labels must therefore be JSON, from the same origin, and to an address or localhost.
"""

from __future__ import annotations

import hashlib
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from longtail.serve.messages import HTTPError, Scope, header
from longtail.serve.settings import Settings, is_loopback


class Access:
    """Who may query, and who may change labels."""

    def __init__(self, settings: Settings) -> None:
        self._key = None if settings.api_key is None else _digest(settings.api_key.strip().encode())
        self._loopback = settings.loopback

    def check(self, scope: Scope) -> None:
        """Refuse a request without the API key, if the service has one."""
        if self._key is None:
            return
        key = header(scope, b"x-api-key")
        authorization = header(scope, b"authorization")
        if key is None and authorization is not None:
            scheme, _, token = authorization.partition(b" ")
            key = token if scheme.lower() == b"bearer" else None
        # Digests of equal length are compared in constant time: timing shows not even the length of the key.
        if key is None or not hmac.compare_digest(_digest(key.strip()), self._key):
            raise HTTPError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer … or X-API-Key",
                (b"www-authenticate", b"Bearer"),
            )

    def check_change(self, scope: Scope) -> None:
        """Refuse a change that another web page may have sent (CSRF, DNS rebinding)."""
        if scope["method"] == "POST":
            content_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
            if content_type != b"application/json":
                raise HTTPError(415, "send the body as Content-Type: application/json")
        host = (header(scope, b"host") or b"").decode("latin-1").lower()
        origin = header(scope, b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc.lower() != host:
            raise HTTPError(403, "labels can be changed from the service's own page only")
        if self._key is None and self._loopback and not _is_address(host):
            raise HTTPError(403, "labels can be changed at localhost or an IP address only, unless there is an API key")


def _digest(key: bytes) -> bytes:
    """Hash a key."""
    return hashlib.sha256(key).digest()


def _is_address(host: str) -> bool:
    """Return whether a Host header names localhost or an address, with or without a port.

    >>> [_is_address(host) for host in ("localhost:8000", "[::1]:80", "192.168.0.2", "evil.example:8000")]
    [True, True, True, False]
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) or bool(ip_address(name))
    except ValueError:
        return False
