"""FILE → LINES → CLEAN TEXTS: gzip, UTF-8, UTF-16 and white space, once for all formats.

A text is one line: white space and control characters become single blanks, and nothing stands at its ends, so that
every format can hold every text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from longtail.data.problems import Problems
from longtail.errors import DataError
from longtail.files import regular
from longtail.packed import largest, remedy
from longtail.types import Texts

GZIP = b"\x1f\x8b"
LONGEST = 64 * 2**20  # bytes of a line: no text is longer, and a packed file may hold nothing else
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # no UTF-8 begins with either
HEAD = 1 << 20
PIECE = 1 << 16
READ = 1 << 18  # most bytes of a read
_BLANKS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xFEFF], " ")
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Make a text one line: runs of white space and control characters become one blank, lone surrogates U+FFFD.

    >>> clean("  a\tb\x00c\n")
    'a b c'
    """
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return " ".join(_SURROGATES.sub("\ufffd", text).translate(_BLANKS).split())


def has_surrogate(text: str) -> bool:
    r"""Return whether a text holds half of a surrogate pair, which no file can store.

    >>> has_surrogate("a\ud800"), has_surrogate("a")
    (True, False)
    """
    return _SURROGATES.search(text) is not None


def read_bytes(path: Path, problems: Problems) -> bytes:
    """Read a whole file as UTF-8, unpacked if it is gzip; of a damaged gzip file keep what can be unpacked."""
    try:
        size = regular(path, links=True)
        content = path.read_bytes()
    except OSError as reason:
        raise problems.fatal(
            "unreadable", f"cannot be read ({reason.strerror or reason})", file=path, remedy="give a readable file"
        ) from None
    if content.startswith(GZIP):
        most = largest(size)
        content, complaint = _unpacked(content, most + 1)
        if len(content) > most:
            found = f"{size:,} bytes of gzip unpack to more than {most:,}"
            raise problems.fatal("swollen gzip", found, file=path, remedy=remedy(size, 20 * most))
        if complaint:
            again = "copy or compress the file again"
            problems.error("damaged gzip", f"the gzip file is {complaint}", file=path, remedy=again)
    if content.startswith(UTF_16):
        try:
            content = content.decode("utf-16").encode()
        except UnicodeError as reason:
            found = f"not UTF-16 ({reason})"
            raise problems.fatal("bad UTF-16", found, file=path, remedy="save the file as UTF-8") from None
    return content.removeprefix(BOM)


def read_head(path: Path, size: int = HEAD) -> bytes:
    """Read the first bytes of a file, unpacked if it is gzip; an unreadable file has none."""
    try:
        regular(path, links=True)
        with path.open("rb") as file:
            head = file.read(size)
    except OSError:
        return b""
    if head.startswith(GZIP):
        head = _unpacked(head, size)[0][:size]  # damage is reported when the whole file is read
    if head.startswith(UTF_16):
        return head[: len(head) // 2 * 2].decode("utf-16", "replace").encode()
    return head.removeprefix(BOM)


def _unpacked(packed: bytes, limit: int | None = None) -> tuple[bytes, str]:
    """Unpack all members of a gzip file; return what came out and what was wrong, if anything."""
    parts: list[bytes] = []
    rest, size = memoryview(packed), 0
    while rest and (limit is None or size < limit):
        engine = zlib.decompressobj(31)
        start = 0
        while not engine.eof and start < len(rest) and (limit is None or size < limit):
            part, complaint = _inflated(engine, rest[start : start + PIECE])
            parts.append(part)
            if complaint:
                return b"".join(parts), complaint
            start, size = start + PIECE, size + len(part)
        if not engine.eof:
            return b"".join(parts), "truncated"
        rest = rest[min(start, len(rest)) - len(engine.unused_data) :]
        if not any(rest[:64]):  # tapes and some servers pad with zeros
            break
    return b"".join(parts), ""


def _inflated(engine: zlib._Decompress, piece: memoryview) -> tuple[bytes, str]:
    """Unpack one piece; of a damaged one save what comes before the damage, in small steps."""
    backup = engine.copy()
    try:
        return engine.decompress(piece), ""
    except zlib.error as reason:
        complaint = f"damaged ({reason})"
    parts, rest = [b"start"], bytes(piece)
    while rest or parts[-1]:
        try:
            parts.append(backup.decompress(rest, 256))
        except zlib.error:  # the damage that was found above
            break
        rest = backup.unconsumed_tail
    return b"".join(parts[1:]), complaint


def split_lines(content: bytes) -> list[bytes]:
    r"""Cut into lines at \n only; a last line without \n counts, and the end of a line may be \r\n.

    >>> split_lines(b"a\r\n\nb")
    [b'a', b'', b'b']
    """
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if b"\r" in content:
        lines = [line.removesuffix(b"\r") for line in lines]
    return lines


def decoded(
    content: bytes, path: Path, problems: Problems, *, first: int = 1, latin: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of every line; a line that is not UTF-8 is an error, or read as Latin-1 if `latin`."""
    return decode_lines(split_lines(content), path, problems, first=first, latin=latin)


def decode_lines(
    lines: Iterable[bytes], path: str | Path, problems: Problems, *, first: int = 1, latin: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of lines that are cut already."""
    for number, line in enumerate(lines, first):
        try:
            yield number, line.decode()
        except UnicodeDecodeError as reason:
            found = f"not UTF-8 at byte {reason.start + 1} of the line ({line[reason.start : reason.start + 1]!r})"
            if latin:
                problems.warn("bad UTF-8", found, file=path, line=number, remedy="it was read as Latin-1")
                yield number, line.decode("latin-1")
            else:
                problems.error("bad UTF-8", found, file=path, line=number, remedy="save the file as UTF-8")
                yield number, line.decode("utf-8", "replace")


def stream_lines(file: io.BufferedReader, name: str) -> Iterator[list[bytes]]:
    """Yield the lines that every read of a file completes: what a pipe or a terminal has at hand, not waiting for more.

    Gzip is unpacked, UTF-16 becomes UTF-8, and a byte order mark is dropped. No more than a read is held.
    """
    partial: list[bytes] = []  # the pieces of a line whose end has not been read
    length = 0  # of these
    for piece in _pieces(file, name):
        *complete, tail = piece.split(b"\n")
        length = len(tail) if complete else length + len(tail)
        if length > LONGEST:
            raise DataError(f"a line of more than {LONGEST >> 20} MB", file=name, remedy="cut it into shorter texts")
        if complete:
            yield [b"".join([*partial, complete[0]]), *complete[1:]]
            partial = []
        partial.append(tail)
    if any(partial):
        yield [b"".join(partial)]


def _pieces(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the bytes of a file as they come, as UTF-8."""
    try:
        source = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(GZIP) else file
        piece = source.read1(READ)
        wide = codecs.getincrementaldecoder("utf-16")() if piece.startswith(UTF_16) else None
        piece = piece.removeprefix(BOM)
        while piece:
            yield piece if wide is None else wide.decode(piece).encode()
            piece = source.read1(READ)
        if wide is not None:
            wide.decode(b"", True)
    except (EOFError, gzip.BadGzipFile, zlib.error) as reason:
        complaint = f"the gzip file is damaged ({reason})"
        raise DataError(complaint, file=name, remedy="copy or compress the file again") from None
    except UnicodeError as reason:
        raise DataError(f"not UTF-16 ({reason})", file=name, remedy="save the file as UTF-8") from None


def read_texts(path: Path, problems: Problems, count: int | None = None) -> list[str]:
    """Read one text a line; blank lines at the end that exceed an expected count are dropped."""
    texts = [clean(text) for _, text in decoded(read_bytes(path, problems), path, problems)]
    while count is not None and len(texts) > count and not texts[-1]:
        texts.pop()
    return texts


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write one text a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\n" for text in texts)


def write_packed(path: Path, lines: Iterable[str]) -> None:
    """Write lines as gzip, the same bytes for the same lines."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
        batch: list[str] = []
        for line in lines:
            batch.append(line)
            if len(batch) == 4096:
                packed.write("\n".join([*batch, ""]).encode())
                batch.clear()
        packed.write("\n".join([*batch, ""]).encode())


def tidy(texts: Texts | None) -> Texts | None:
    """Clean every text, as loading would; texts that are clean already are returned as they are."""
    if texts is None:
        return None
    raw = texts.tolist()
    cleaned = [clean(text) for text in raw]
    return texts if cleaned == raw else Texts(cleaned)
