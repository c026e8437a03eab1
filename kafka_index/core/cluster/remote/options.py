"""The options for remote segments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from kafka_index.core.errors import (
    ConfigError,
    argument_text,
    refuse_fields_of_other_types,
    refuse_other_types,
)
from kafka_index.core.format.config import to_list_members
from kafka_index.core.format.uri_passwords import path_of

# Values of `kafka_index.core.fs.tiered.Layout`, which is slow to import.
_LAYOUTS = ("aiven", "local")


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """The location of remote segments, and the topics to read.

    Parameters
    ----------
    uris : tuple of str
        Folders of objects: paths or URIs.
    layout : str, optional
        Object layout, ``aiven`` or ``local``. By default, or with ``auto``, it is detected.
    key_prefix : str, optional
        ``key.prefix`` of Aiven's plugin; other keys are skipped. Default: any.
    topic_ids : tuple of str
        Topic IDs to read if several topics have the same name.
    keys : tuple of (str, str)
        IDs of key pairs for encrypted segments, and files with their private keys.
    """

    uris: tuple[str, ...] = ()
    layout: str | None = None
    key_prefix: str | None = None
    topic_ids: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, given: TieredOptions | str | PathLike[str] | Sequence[str | PathLike[str]] | None
    ) -> TieredOptions | None:
        """Convert an argument: options, one or several folders, or None."""
        if given is None or isinstance(given, TieredOptions):
            return given
        folders = [given] if isinstance(given, str | PathLike) else to_list_members(given)
        paths = [os.fspath(each) for each in folders or () if isinstance(each, str | PathLike)]
        uris = tuple(path for path in paths if isinstance(path, str) and "\0" not in path)
        if folders is None or len(uris) < len(folders):
            raise ConfigError(
                "tiered is not a path",
                expected="a path or a URI, or a list of them",
                found=argument_text(given),
            )
        return cls(uris)

    def __post_init__(self) -> None:
        for name, what in (("uris", "folders"), ("topic_ids", "topic ids")):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(isinstance(each, str) for each in given):
                raise ConfigError(
                    f"{name} is not a tuple of {what}",
                    expected=f"a tuple of {what}",
                    found=argument_text(given),
                )
        refuse_other_types(keys=(self.keys, tuple))
        for pair in self.keys:
            refuse_other_types(**{"keys: a pair": (pair, tuple)})
        refuse_fields_of_other_types(self)
        for uri in self.uris:
            path_of(uri, "a URI")
        if self.layout not in (None, "auto", *_LAYOUTS):
            raise ConfigError(
                "layout is not one of the choices",
                expected=", ".join(("auto", *_LAYOUTS)),
                found=argument_text(self.layout),
            )
        object.__setattr__(self, "layout", None if self.layout == "auto" else self.layout)
