"""REQUEST → ACCESS: the API key, and guards against requests that other web pages send.

A service on loopback without a key can still be reached by a browser that shows somebody else's page. Such a page
cannot choose an address as host name (DNS rebinding gives it a name), and it cannot send JSON across origins without
being allowed to. So requests must be to an address or localhost, and changes of labels JSON from the same origin.
"""

from __future__ import annotations

import hashlib
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from longtail.serve.messages import HTTPError, Scope, header, only_header
from longtail.serve.settings import Settings, is_loopback


class Access:
    """Who may query, and who may change labels."""

    def __init__(self, settings: Settings) -> None:
        self._key = None if settings.api_key is None else _digest(settings.api_key.strip().encode())
        self._loopback = settings.loopback

    def check(self, scope: Scope) -> None:
        """Refuse a request without the API key, if the service has one; without, one to a name on loopback."""
        if self._key is None:
            if self._loopback and not _is_address(_host(scope)):
                raise HTTPError(403, "ask at localhost or an IP address: a name is answered only with an API key")
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
        origin = only_header(scope, b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc.lower() != _host(scope):
            raise HTTPError(403, "labels can be changed from the service's own page only")


def _host(scope: Scope) -> str:
    """Return the Host header."""
    return (only_header(scope, b"host") or b"").decode("latin-1").lower()


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
