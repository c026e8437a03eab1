"""What may be an output, and what is in its way."""

from __future__ import annotations

import os
import re

from kafka_index.errors import InputError
from kafka_index.lookup.queries.query_files import COMPRESSIONS, QueryFormat

# Parts of ours and of Spark's: only a folder of nothing else is ever replaced.
_REPLACEABLE = re.compile(r"_SUCCESS|part-[^/]*|\..*\.crc")


def names_file(path: str, form: QueryFormat, *, was_chosen: bool) -> bool:
    """Return whether an output is one file.

    Parameters
    ----------
    path : str
        The output, as given.
    form : QueryFormat
        The format of the answers.
    was_chosen : bool
        Whether it was asked for, and is not just that of the queries.

    Raises
    ------
    InputError
        The output's ending says another format.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending in form.endings:
        return True
    said = QueryFormat.of(path)
    if said is not None or ending in COMPRESSIONS:
        whose = "that --output-format says" if was_chosen else "of the queries"
        raise InputError(
            f"answers are written in the format {whose}, {form.text}",
            path=path,
            expected=f"{' or '.join(form.endings)}, or a folder",
            found=ending,
            hint=None if said is None else f"say --output-format {said.value}",
        )
    return False


def refuse_existing(output: str, given: str, *, is_file: bool, overwrite: bool) -> None:
    """Refuse an output that is there, unless it is to be replaced and is such an output.

    Parameters
    ----------
    output : str
        Absolute.
    given : str
        As given, for errors.
    is_file : bool
        Whether it will be a file.
    overwrite : bool
        Whether it is to be replaced.

    Raises
    ------
    InputError
        It may not be replaced.
    """
    if not os.path.lexists(output):
        return
    if os.path.isdir(output) and not os.path.islink(output):
        names = os.listdir(output)
        if not names and not is_file:
            return
        strange = sorted(name for name in names if not _REPLACEABLE.fullmatch(name))
        if overwrite and (is_file or strange):
            raise InputError(
                "a folder of other things is not replaced",
                path=given,
                found=strange[0] if strange else "a folder",
                hint="choose another place",
            )
    elif overwrite and not is_file:
        raise InputError(
            "a file is not replaced by a folder", path=given, hint="choose another place"
        )
    if not overwrite:
        raise InputError(
            "the output is there already",
            path=given,
            hint="choose another --output, or say --overwrite",
        )
