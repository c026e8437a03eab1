"""Options of stores: what is no secret by value, what is one by the file that holds it.

Options travel to executors, into event logs and error texts as they were given, so a secret is
only ever a reference (``@/path/to/file``), which each process resolves for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kafka_index.errors import ConfigError, InputError
from kafka_index.layout.uri_passwords import has_password

_SECRET = re.compile(
    r"secret|token(?!_file|_service)|password|passphrase|credential(?!s?_(?:type|file|relative|full))"
    r"|(?:account|access|master|customer|encryption|private|sas|shared)_key|(?:^|_)sas(?:$|_)"
    r"|connection_string",
    re.IGNORECASE,
)
_REFERENCE = "@"
# The access key's id is an identifier that logs and URLs show.
_NO_SECRETS = frozenset({"aws_access_key_id", "access_key_id"})


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options under the names of the storage library, with references to secrets.

    The items have ascending keys, each once; in lower case, except Hadoop's, which have dots. The
    tiered keys are ids of the key pairs of tiered storage, and the files that hold their private
    keys.
    """

    items: tuple[tuple[str, str], ...] = ()
    tiered_keys: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, bool], ...] = field(default=(), compare=False)

    def resolve(self) -> dict[str, str]:
        """Return the options with each reference replaced by the content of its file.

        Raises `InputError` if a file cannot be read.
        """
        return {key: _resolved(key, value) for key, value in self.items}


def parse_storage_options(texts: Iterable[str]) -> StorageOptions:
    """Parse ``KEY=VALUE`` and ``KEY=@FILE``.

    Raises `ConfigError` if a text has another form, a key is repeated, or a secret is given by
    value.
    """
    options: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip() if "." in key else key.strip().lower()
        if not key or not separator:
            # The text may be a secret: it is not shown.
            raise ConfigError("not a storage option", expected="KEY=VALUE or KEY=@FILE")
        if key in options:
            raise ConfigError(f"the storage option {key} is given twice")
        if not value.startswith(_REFERENCE) and (is_secret(key) or has_password(value)):
            raise ConfigError(
                f"the storage option {key} holds a secret, and command lines are visible to others",
                expected=f"{key}=@FILE",
                hint="write it to a file that only you can read, or set it in the environment",
            )
        options[key] = value
    return StorageOptions(tuple(sorted(options.items())))


def is_secret(key: str) -> bool:
    """Return whether the value of an option must not be shown."""
    return key not in _NO_SECRETS and _SECRET.search(key) is not None


def _resolved(key: str, value: str) -> str:
    if not value.startswith(_REFERENCE):
        return value
    path = value[len(_REFERENCE) :]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the storage option {key}: {reason}", path=path) from error
