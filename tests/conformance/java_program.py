"""Programs of Java beside this file, which answer a line with a line by Kafka's own classes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

from .kafka_jars import class_path, needing_kafka, tool


class JavaProgram:
    """A running program; a context manager. Skips, or fails, where Kafka's code cannot run.

    `name`: of its file, without the suffix.
    """

    def __init__(self, name: str) -> None:
        source = Path(__file__).with_name(f"{name}.java")
        with needing_kafka():
            command = [tool("java"), "-Xmx1g", "-cp", class_path(), str(source)]
            tool("javac")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            bufsize=1,
        )
        assert self._answer() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, *words: object) -> str:
        """Return the line that answers some words."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")
