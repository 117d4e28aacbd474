"""FILES ↔ DATASET: ten formats, found by content."""

from longtail.data.formats.registry import FORMATS, Format, load, write

__all__ = ["FORMATS", "Format", "load", "write"]
