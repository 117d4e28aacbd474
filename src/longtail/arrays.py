"""ARRAYS OF A FILE → ARRAYS THAT FIT: the part that owns an array says what it must be, and nothing else is ever used.

A model folder may come from a stranger whose checksums fit. So every array is compared with its declaration (type,
dimensions, sizes that must be equal, bounds of its entries) when it is opened, before compiled code sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import ModelError
from longtail.files import released

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
LARGEST = 1e9  # of a weight: products of a few such are finite, and nobody learns larger ones
FLOATS, INTS, NUMBERS = ("float32",), ("int32", "int64"), ("float32", "float64")
BLOCK = 2**22  # entries that are looked at at once
TRAIN = "train again"


@dataclass(frozen=True)
class Array:
    """What one array must be.

    A name in the shape is a size: the same wherever it stands among arrays that are checked together; "labels+1" is one
    more. Entries lie from `low` to `high`, and below the size `below` where one is named.
    """

    name: str
    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...] = FLOATS
    low: float = -LARGEST
    high: float = LARGEST
    below: str = ""


def places(name: str, size: int | str, below: str, *, dtypes: tuple[str, ...] = INTS) -> Array:
    """Declare a list of places among so many things."""
    return Array(name, (size,), dtypes, 0, below=below)


def number(name: str, low: float, high: float, dtypes: tuple[str, ...] = NUMBERS) -> Array:
    """Declare an array with one number."""
    return Array(name, (1,), dtypes, low, high)


def checked(arrays: Arrays, schema: Sequence[Array], *, remedy: str = TRAIN, **sizes: int) -> tuple[NDArray[Any], ...]:
    """Return the arrays of a schema, in its order, if each is what it must be; `sizes` are those known already.

    >>> rows = {"rows": np.zeros((3, 2), np.float32), "of": np.array([0, 5])}
    >>> checked(rows, [Array("rows", ("labels", "width")), places("of", 2, "labels")], width=2)
    Traceback (most recent call last):
    longtail.errors.ModelError: the array of is damaged: it holds 0 to 5, not 0 to 2; train again
    """
    for own in schema:
        if own.name not in arrays:
            raise ModelError(f"the array {own.name} is missing; {remedy}")
        array = arrays[own.name]
        if str(array.dtype) not in own.dtypes or array.ndim != len(own.shape) or not _fits(array, own, sizes):
            wanted = f"{' or '.join(own.dtypes)} ({', '.join(map(str, own.shape))})"
            known = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ModelError(
                f"the array {own.name} is damaged: it is {array.dtype} {array.shape}, not {wanted}"
                f"{f' with {known}' if known else ''}; {remedy}"
            )
    for own in schema:
        array, high = arrays[own.name], sizes[own.below] - 1 if own.below else own.high
        if not within(array, own.low, high):
            held = f"{array.min()} to {array.max()}, not {own.low:.6g} to {high:.6g}"
            raise ModelError(f"the array {own.name} is damaged: it holds {held}; {remedy}")
    return tuple(arrays[own.name] for own in schema)


def _fits(array: NDArray[Any], own: Array, sizes: dict[str, int]) -> bool:
    """Return whether an array has the sizes of its shape; names that are new stand for the sizes found."""
    for size, wanted in zip(array.shape, own.shape, strict=True):
        if isinstance(wanted, int):
            expected = wanted
        else:
            name, plus, more = wanted.partition("+")
            extra = int(more) if plus else 0
            expected = sizes.setdefault(name, size - extra) + extra
        if size != expected:
            return False
    return True


def within(array: NDArray[Any], low: float, high: float) -> bool:
    """Return whether all entries lie from `low` to `high`; NaN never does. A mapped array gives its memory back."""
    blocks = _blocks(array.reshape(-1))
    sound = all(bool(low <= block.min().item() and block.max().item() <= high) for block in blocks)
    released(array)
    return sound


def _blocks(array: NDArray[Any], overlap: int = 0) -> Iterator[NDArray[Any]]:
    """Cut a flat array into blocks, each with the first entries of the next."""
    for start in range(0, len(array), BLOCK):
        yield array[start : start + BLOCK + overlap]


def ascends(places: NDArray[Any], first: int | None, last: int) -> bool:
    """Return whether places ascend from `first` (or any) to `last`: neighbours are compared, differences may overflow.

    >>> ascends(np.array([0, 2, 2, 5]), 0, 5), ascends(np.array([0, 2**31 - 1, -(2**31), 5], np.int32), 0, 5)
    (True, False)
    """
    if len(places) == 0:
        return last == 0
    begins = places[0] >= 0 if first is None else places[0] == first
    return bool(begins and places[-1] == last) and all(
        bool((block[1:] >= block[:-1]).all()) for block in _blocks(places, 1)
    )


def matrix_arrays(name: str, matrix: sp.csr_array) -> dict[str, NDArray[Any]]:
    """Name the arrays of a CSR for `write_arrays`; an empty name leaves them bare."""
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.data}
    arrays["shape"] = np.asarray(matrix.shape, np.int64)
    return {f"{name}.{key}" if name else key: value for key, value in arrays.items()}


def matrix_of(
    arrays: Arrays, name: str, rows: int | None = None, columns: int | None = None, *, low: float = -LARGEST,
    high: float = LARGEST, remedy: str = "write the folder again",
) -> sp.csr_array:  # fmt: skip
    """Put the CSR called `name` together without copying, after checking that its places stay inside.

    `rows` and `columns` are what it must have, where that is known; its entries lie from `low` to `high`.
    """
    (shape,) = checked(arrays, (Array(f"{name}.shape", (2,), ("int64",), 0, 2**31 - 1),), remedy=remedy)
    tall, wide = (int(size) for size in shape)
    if rows not in (None, tall) or columns not in (None, wide):
        needed = f"({'any' if rows is None else rows}, {'any' if columns is None else columns})"
        raise ModelError(f"{name} is damaged: it is ({tall}, {wide}), not {needed}; {remedy}")
    schema = (
        Array(f"{name}.indptr", ("rows+1",), INTS, 0, np.inf),
        places(f"{name}.indices", "entries", "columns"),
        Array(f"{name}.values", ("entries",), FLOATS, low, high),
    )
    indptr, indices, values = checked(arrays, schema, remedy=remedy, rows=tall, columns=wide)
    if not ascends(indptr, 0, len(indices)):
        raise ModelError(f"{name} is damaged: its rows do not follow each other to the last entry; {remedy}")
    matrix = sp.csr_array((tall, wide), dtype=values.dtype)
    matrix.data, matrix.indices, matrix.indptr = values, indices, indptr  # no copy, no further scan
    return matrix
