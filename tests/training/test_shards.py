"""One process and several give the same training."""

from __future__ import annotations

