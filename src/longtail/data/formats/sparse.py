"""SPARSE MATRIX FILES ↔ CSR: the XMC repository's text layout and scipy's npz.

    n_rows n_cols          header
    3:1.0 17:0.25          row 0: `column:value`, ascending
                           a blank line is an empty row

Regular files are parsed as a whole by numpy; only a file that is not regular is read line by line, to say where.
"""

from __future__ import annotations

import scipy.sparse as sp
import numpy as np


def canonical(matrix: sp.csr_array) -> sp.csr_array:
    """Return float32 with sorted columns, duplicates summed and zeros dropped."""
    matrix = sp.csr_array(matrix, dtype=np.float32, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
