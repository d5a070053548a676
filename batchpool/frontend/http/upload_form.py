"""The form of an upload (multipart/form-data), read piece by piece as it arrives.

python-multipart cuts the stream into parts. The bytes of the one that is the file are handed on at
once, and are never held; all others are fields, of a few bytes.
https://www.rfc-editor.org/rfc/rfc7578
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from batchpool.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from batchpool.wire.request import Headers, brief

FILE = "file"
_LONGEST_NAME = 255  # characters of a file's name
_LONGEST_BOUNDARY = 70  # as the standard has it
_MOST_FIELDS = 32
MOST_BYTES_BESIDE = 16 * 1024  # of a form, beside its file: the other parts, and all boundaries
_MOST_FIELD_BYTES = 4096  # of all fields, with their names
_MOST_HEADERS = 16
_MOST_HEADER_BYTES = 4096


class UploadForm:
    """One form. fields: those that are complete, by name. filename: as the caller calls its file,
    without folders; it names nothing here. has_file: the part that is the file has begun. ended:
    the form is complete.

    Raises UnsupportedMediaType for headers of another body.
    """

    def __init__(self, headers: Headers) -> None:
        kind, options = parse_options_header(headers.get(b"content-type", b""))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise UnsupportedMediaType(
                "the content type is"
                f" {brief(headers.get(b'content-type', b'').decode('latin-1'))};"
                " multipart/form-data with a boundary was expected"
            )
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMediaType("an upload is not compressed; send it without an encoding")
        if len(boundary) > _LONGEST_BOUNDARY:
            raise UnsupportedMediaType(
                f"the boundary has {len(boundary)} characters; at most {_LONGEST_BOUNDARY} are"
                " allowed"
            )
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_bytes,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_count=_MOST_HEADERS,
            max_header_size=_MOST_HEADER_BYTES,
        )
        self._delimiter = b"\r\n--" + boundary
        self._found: list[bytes] = []
        self._header, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._field = b""
        self._field_bytes = 0
        self._parts = 0
        self._bytes_beside = 0
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.has_file = False
        self.ended = False

    def feed(self, piece: bytes) -> bytes:
        """The bytes of the file that these bytes of the body hold. InvalidRequest or TooLarge for a
        body that is no such form."""
        if self.ended:
            return b""  # what follows the last boundary is nobody's
        self._found.clear()
        # Each costs the parser as much as thousands of other bytes.
        if piece.count(self._delimiter) > _MOST_FIELDS + 2:
            raise InvalidRequest(
                f"the boundary stands more than {_MOST_FIELDS + 2} times in a piece of the form;"
                f" at most {_MOST_FIELDS} parts are taken beside the file, which must not hold it"
            )
        try:
            self._parser.write(piece)
        except FormParserError as exc:
            raise InvalidRequest(f"the body is no multipart/form-data: {exc}") from None
        found = b"".join(self._found)
        if not self.ended:
            self._bytes_beside += len(piece) - len(found)
            if self._bytes_beside > MOST_BYTES_BESIDE:
                raise TooLarge(
                    f"the form has more than {MOST_BYTES_BESIDE} bytes beside its file, the part"
                    f" that is named {FILE!r}"
                )
        return found

    def close(self) -> None:
        """Take nothing more, and let go of the parser, which holds this form and its last bytes."""
        self.ended = True
        self._found.clear()
        del self._parser

    def check_end(self) -> None:
        """Raise InvalidRequest unless the form is complete, with its file."""
        if not self.ended:
            raise InvalidRequest("the form ends before its last boundary; send it whole")
        if not self.has_file:
            raise _missing(FILE)

    def required(self, name: str) -> str:
        """A field that has to be there. InvalidRequest where it is not."""
        if name not in self.fields:
            raise _missing(name)
        return self.fields[name]

    # -- what the parser finds ----------------------------------------------------------

    def _on_part_begin(self) -> None:
        self._parts += 1  # also of those that have no name, or that of another one
        if self._parts > _MOST_FIELDS + 1:
            raise TooLarge(f"the form has more than {_MOST_FIELDS} parts beside the file")
        self._headers = {}
        self._field = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name != FILE:
            self._count(len(self._name))
            return
        if self.has_file:
            error = InvalidRequest("the form has two files; one at a time is taken")
            error.param = FILE
            raise error
        self.has_file = True
        self.filename = _label(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _on_part_bytes(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if self._name == FILE:
            self._found.append(piece)
        else:
            self._count(len(piece))
            self._field += piece

    def _on_part_end(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self.ended = True

    def _count(self, n_bytes: int) -> None:
        self._field_bytes += n_bytes
        if self._field_bytes > _MOST_FIELD_BYTES:
            raise TooLarge(
                f"the fields beside the file have more than {_MOST_FIELD_BYTES} bytes; the file's"
                f" part is named {FILE!r}"
            )


def _missing(name: str) -> InvalidRequest:
    error = InvalidRequest(f"the form has no part {name!r}")
    error.param = name
    return error


def _label(filename: str) -> str:
    """A caller's name for a file, as it is shown: without folders and control characters."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(each for each in last if each.isprintable())[:_LONGEST_NAME] or "file"
