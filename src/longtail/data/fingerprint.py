"""TEXTS AND MATRICES → FINGERPRINT: it depends on the content only, never on the format that it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.types import Texts, joined


def digest(parts: Iterable[tuple[str, Texts | sp.csr_array | None]]) -> str:
    """Hash named values, whatever their order."""
    total = hashlib.sha256(b"longtail-1")
    for name, value in sorted(parts, key=lambda part: part[0]):
        total.update(name.encode())
        for piece in _pieces(value):
            total.update(hashlib.sha256(piece).digest())
    return total.hexdigest()[:32]


def _pieces(value: Texts | sp.csr_array | None) -> Iterable[bytes | memoryview]:
    """Cut a value into canonical byte strings."""
    if value is None:
        return [b"none"]
    if isinstance(value, Texts):
        array = pa.concat_arrays([value.array]) if value.array.offset == 0 else joined(Texts([]), value).array
        _, offsets, body = array.buffers()
        starts = np.frombuffer(offsets, np.int64, len(array) + 1) if len(array) else np.zeros(1, np.int64)
        raw = memoryview(body)[int(starts[0]) : int(starts[-1])] if body is not None else b""
        return [b"texts", (starts - starts[0]).tobytes(), raw]
    shape = repr(tuple(int(n) for n in value.shape)).encode()
    arrays: list[NDArray[Any]] = [value.indptr.astype(np.int64), value.indices.astype(np.int64), value.data]
    return [b"matrix", shape, *(part.tobytes() for part in arrays)]
