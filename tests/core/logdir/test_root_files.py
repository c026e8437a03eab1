"""Files at the root of a data directory, in each state and with each command."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from tests.support.child_processes import enforce_permissions
from tests.support.command_line import Argument, run_here
from tests.support.restoring import MARKER, copy_dump

PARTITION = "payments-0"
RECOVERY_POINTS, LOG_STARTS = "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, "replication-offset-checkpoint", CLEANED)
IDENTITY, TOPIC_ID, EPOCHS = "meta.properties", "partition.metadata", "leader-epoch-checkpoint"
COMMANDS: dict[str, tuple[Argument, ...]] = {
    "verify": ("--input", "DATA"),
    "predict": ("--input", "DATA"),
    "restore": ("--input", "DATA", "--output", "OUT", "--new-topic-ids"),
    "lookup": ("--logs", "DATA", "--topic", "payments", "--partition", 0, "--offset", 5),
    "export": ("--input", "DATA", "--output", "OUT"),
    "metadata": ("DATA",),
}
#: The files whose content each command reads.
READ = {
    "verify": (*CHECKPOINTS, MARKER, IDENTITY, TOPIC_ID, EPOCHS),
    "predict": (*CHECKPOINTS, IDENTITY, TOPIC_ID, EPOCHS),
    "restore": (*CHECKPOINTS, IDENTITY, TOPIC_ID, EPOCHS),
    "lookup": (LOG_STARTS, CLEANED, EPOCHS),
    "export": (*CHECKPOINTS, TOPIC_ID, EPOCHS),
    "metadata": (),
}


class FileState(Enum):
    """The state of a file: a broker reads it, fails on it, or this process may not read it."""

    VALID = "valid"
    FAILS = "fails"
    UNREAD = "unread"


def _replaced(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _unreadable(path: Path) -> None:
    path.touch()
    path.chmod(0)


#: How a file is changed, and the words with which commands report it.
STATES: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (_replaced, ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "malformed": (lambda path: path.write_bytes(b"0\n1\nx\n"), "line 3 of the checkpoint"),
    "no numbers": (lambda path: path.write_bytes(b"0\n1\nx y z\n"), "line 3 of the checkpoint"),
    "not text": (lambda path: path.write_bytes(b"0\n1\n\xff 0 5\n"), "not UTF-8 text"),
    "a directory": (lambda path: _replaced(path).mkdir(), "is a directory"),
    "a broken link": (lambda path: _replaced(path).symlink_to("away"), "a broken link"),
    "unreadable": (_unreadable, "Permission denied"),
}


def state_of(name: str, state: str) -> FileState:
    if state == "unreadable":
        return FileState.UNREAD
    # A broker resets both checkpoints to 0.
    if name in (RECOVERY_POINTS, LOG_STARTS) and state == "no numbers":
        return FileState.VALID
    # The content of the clean shutdown file is ignored. Checkpoints may be missing or empty.
    if name == MARKER or (name in CHECKPOINTS and state in ("absent", "empty")):
        return FileState.VALID
    return FileState.FAILS


def expected(command: str, name: str, file_state: FileState) -> tuple[set[int], bool]:
    """Return the expected exit codes, and whether the output must contain the file."""
    # The listing of a data directory checks its checkpoints for every command.
    if name in CHECKPOINTS and file_state is FileState.FAILS:
        return {1}, True
    if name not in READ[command] or file_state is FileState.VALID:
        return {0}, False
    if file_state is FileState.UNREAD:
        return {3}, True
    if name == EPOCHS or command in ("verify", "predict"):
        return {1}, True
    if command == "restore":
        # A directory with an identity on which no broker starts is not restored.
        return ({0, 2}, True) if name == IDENTITY else ({0}, False)
    return {0}, False


def cases() -> list[tuple[str, str]]:
    names = (*CHECKPOINTS, MARKER, IDENTITY, TOPIC_ID, EPOCHS)
    result = [(name, state) for name in names for state in STATES]
    # A broker starts without leader epochs; only verify reports them as missing.
    return [case for case in result if case not in ((EPOCHS, "absent"), (EPOCHS, "empty"))]


@pytest.mark.parametrize(("name", "state"), cases())
def test_commands_agree_on_a_malformed_metadata_file(name: str, state: str, tmp_path: Path) -> None:
    change, words = STATES[state]
    data = copy_dump(tmp_path / "data", PARTITION, "__consumer_offsets-0")
    change(data / PARTITION / name if name in (TOPIC_ID, EPOCHS) else data / name)
    file_state = state_of(name, state)

    for command, arguments in COMMANDS.items():
        names = {"DATA": data, "OUT": tmp_path / command}
        options = [names.get(str(argument), argument) for argument in arguments]
        with enforce_permissions():
            result = run_here(command, *options)
        text = result.stdout + result.stderr
        codes, is_named = expected(command, name, file_state)
        assert result.returncode in codes, (command, text)
        if is_named:
            assert name in text, (command, text)
            # Other files have more malformed states than checkpoints.
            if name in CHECKPOINTS or file_state is FileState.UNREAD:
                assert words in text, (command, text)


#: What is in a `meta.properties` with which no broker starts, and the reason.
IDENTITIES = {
    "version=1\nnode.id=1\n": "cluster.id is missing",
    "version=0\nbroker.id=1\n": "cluster.id is missing",
    "version=1\ncluster.id=c\n": "node.id is missing",
    "version=1\ncluster.id=c\nnode.id=x\n": "node.id has an invalid value",
    # A broker does not strip blanks there.
    "version=1\ncluster.id=c\nnode.id=1 \n": "node.id has an invalid value",
    "version=1\ncluster.id=c\nnode.id=-1\n": "node.id is -1",
    "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=x\n": "directory.id has an invalid value",
    "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAABw\n": "is reserved",
    "version=2\ncluster.id=c\nnode.id=1\n": "version has an invalid value",
}


@pytest.mark.parametrize("content", IDENTITIES)
def test_commands_give_one_reason_why_no_broker_starts_with_an_identity(
    content: str, tmp_path: Path
) -> None:
    data = copy_dump(tmp_path / "data", PARTITION)
    (data / IDENTITY).write_text(content)

    for command, code in (("verify", 1), ("predict", 1), ("restore", 2)):
        names = {"DATA": data, "OUT": tmp_path / command}
        result = run_here(command, *(names.get(str(each), each) for each in COMMANDS[command]))
        text = result.stdout + result.stderr
        assert (result.returncode, IDENTITY in text) == (code, True), (command, text)
        assert IDENTITIES[content] in text, (command, text)
