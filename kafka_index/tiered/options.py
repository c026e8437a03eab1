"""The options for the remote segments of a dump."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from kafka_index.errors import ConfigError
from kafka_index.layout.uri_passwords import refuse_passwords

# The values of `kafka_index.stores.tiered.Layout`, which takes long to import.
_LAYOUTS = ("aiven", "local")


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """The places of remote segments, and the topics to take.

    Parameters
    ----------
    uris : tuple of str
        Folders of objects: paths or URIs.
    layout : str, optional
        ``aiven`` or ``local``; by default, or with ``auto``, it is recognised by the keys.
    key_prefix : str, optional
        ``key.prefix`` of Aiven's plugin: other keys are passed over. By default any.
    topic_ids : tuple of str
        Topics to take where several have one name.
    keys : tuple of (str, str)
        Ids of the key pairs of encrypted segments, and the files that hold their private keys.
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
        """Return options; a folder, or several, stand for themselves alone, and None for none."""
        if given is None or isinstance(given, TieredOptions):
            return given
        folders = [given] if isinstance(given, str | PathLike) else given
        try:
            return cls(tuple(os.fspath(folder) for folder in folders))
        except TypeError as error:
            raise ConfigError(
                "tiered is not a path", expected="a path or a URI", found=repr(given)
            ) from error

    def __post_init__(self) -> None:
        given: object = self.uris
        if isinstance(given, str):
            raise ConfigError("uris is not a tuple of folders", found=repr(given))
        refuse_passwords(self.uris)
        if self.layout not in (None, "auto", *_LAYOUTS):
            raise ConfigError(
                "layout is not one of the choices",
                expected=", ".join(("auto", *_LAYOUTS)),
                found=repr(self.layout),
            )
        object.__setattr__(self, "layout", None if self.layout == "auto" else self.layout)
