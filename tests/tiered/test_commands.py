"""The commands over tiered storage, as anybody runs them."""

from __future__ import annotations

import json

from tests.support.command_line import Argument, run_here
from tests.support.tiered import ENCRYPTED, setting


def _lookup(*arguments: Argument) -> dict[str, object]:
    done = run_here("lookup", *arguments, "--topic", "wallet_tx", "--partition", 0, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return {**answer, "stderr": done.stderr}


def test_a_question_is_answered_from_a_log_directory_and_remote_segments() -> None:
    at = setting("local")
    answer = _lookup("--logs", at.data, "--tiered", at.remote, "--timestamp", -2)

    assert answer["found_offset"] == 0
    assert answer["stderr"] == ""


def test_without_a_log_directory_the_log_start_is_called_a_lower_bound() -> None:
    at = setting("local")
    answer = _lookup("--tiered", at.remote, "--tiered-format", "local", "--offset", 100)

    assert answer["status"] == "found"
    assert "2 partitions without a log directory: the log starts are lower bounds" in str(
        answer["stderr"]
    )


def test_an_encrypted_segment_is_read_with_its_keys() -> None:
    at = setting(ENCRYPTED)
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    answer = _lookup("--tiered", at.remote, *pairs, "--offset", 100, "--resolve", "record")

    assert answer["found_offset"] == 100
    assert str(answer["log_path"]).startswith("tiered+aiven:///")


def test_without_its_key_an_encrypted_segment_is_unreadable_and_the_option_is_named() -> None:
    at = setting(ENCRYPTED)
    done = run_here(
        "lookup", "--tiered", at.remote, "--topic", "turnover", "--partition", 0, "--offset", 7
    )

    assert done.returncode == 1
    assert "give its private key, --tiered-key gk-" in done.stderr
