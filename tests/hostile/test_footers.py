"""Parquet files whose last bytes, which say what the others are, are damaged: pyarrow must not end the process."""

import subprocess
import sys

CODE = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from longtail.errors import LongtailError
from longtail.packed import parquet_table
path = Path(sys.argv[1])
pq.write_table(pa.table({"text": ["red", None, "old cat"], "labels": [[0], [], [1, 2]]}), path, compression="zstd")
whole, refused = path.read_bytes(), 0
footer = int.from_bytes(whole[-8:-4], "little")
for place in range(len(whole) - 8 - footer, len(whole) - 8):
    for bit in (1, 2, 4):
        damaged = bytearray(whole)
        damaged[place] ^= bit
        path.write_bytes(damaged)
        try:
            parquet_table(path)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, LongtailError):
            refused += 1
print(refused)
"""


def test_no_damage_of_a_footer_ends_the_process(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path / "table.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) > 500
