"""OPTIONS → SETTINGS: which models are served, at which address, to whom, and with which limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from longtail.errors import DataError

OPENER = "longtail.index:Index.load"


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all waiting requests."""

    body: int = 2 * 2**20  # bytes of a request
    texts: int = 1000  # texts of a request
    length: int = 20_000  # characters of a text
    label_length: int = 1000  # characters of a new label
    labels: int = 10_000  # labels that one request adds, removes, allows or denies
    k: int = 1000  # labels per text
    waiting: int = 4096  # texts that wait in the queue before new ones are refused
    calls: int = 64  # other calls that wait in the queue
    batch_size: int = 64  # texts that are predicted together
    batch_timeout: float = 0.0  # seconds that an idle service waits for a batch to fill
    timeout: float = 30.0  # seconds until a request is answered with 504
    shutdown_timeout: float = 30.0  # seconds to finish accepted requests when the service stops


@dataclass(frozen=True)
class Settings:
    """The settings of one service."""

    runs: tuple[Path, ...]  # one model folder, or several to compare
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    api_key: str | None = field(default=None, repr=False)
    insecure: bool = False
    public: bool = False  # whether /metrics and /openapi.json are answered without the key
    access_log: Path | None = None  # a JSON line for each request; "-" is standard error
    log_texts: bool = False  # whether its lines have the query and the body of a request
    trusted: tuple[str, ...] = ()  # public keys: only models that one of them signed are served
    feedback: Path | None = None  # a JSON line for each judgement of a prediction
    limits: Limits = Limits()
    opener: str = OPENER

    def __post_init__(self) -> None:
        if not self.runs:
            raise DataError("no model folder", remedy="name at least one: longtail serve RUN")
        if self.log_texts and self.access_log is None:
            raise DataError("there is no access log for texts", remedy="give --access-log FILE too")
        if self.api_key is not None and not self.api_key.strip():
            raise DataError("the API key is empty", remedy="give a long random one, or none")
        if not (self.loopback or self.api_key or self.insecure):
            raise DataError(
                f"{self.host} can be reached from other machines and there is no API key",
                remedy="give --api-key (or LONGTAIL_API_KEY), or say --insecure if everybody may ask and change labels",
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service.

        >>> Settings((Path("run"),), host="::1").loopback
        True
        """
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address; a host name other than localhost counts as public.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
