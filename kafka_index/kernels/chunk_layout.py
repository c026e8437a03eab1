"""The addresses of the columns of a chunk of records, for `decode_batches`."""

from __future__ import annotations

#: What is wanted besides offsets and timestamps, as bits.
PART_KEYS, PART_VALUES, PART_HEADERS = 1, 2, 4

#: The array that says where the columns of a chunk are: addresses of offsets and timestamps; of
#: keys and of values the addresses of their ends (int32, one more than rows, the first one filled
#: in), of a byte each for whether they are present, and of their bytes, and how many of these
#: there may be, `UNPACK_SLACK_BYTES` aside; the address of the array of header places, and how many
#: bytes its rows have; and how many records there may be.
(
    CHUNK_OFFSETS,
    CHUNK_TIMESTAMPS,
    CHUNK_KEY_ENDS,
    CHUNK_KEY_PRESENT,
    CHUNK_KEYS,
    CHUNK_KEY_BYTES,
    CHUNK_VALUE_ENDS,
    CHUNK_VALUE_PRESENT,
    CHUNK_VALUES,
    CHUNK_VALUE_BYTES,
    CHUNK_PLACES,
    CHUNK_PLACE_STRIDE,
    CHUNK_ROWS,
) = range(13)
CHUNK_FIELDS = 13
