"""The error on a machine without the tools, and the Kafka version of the jars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .kafka_jars import VERSIONS, KafkaUnavailable, class_path, jars, tool

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference

NEEDED = ("kafka_2.13", "kafka-clients", "kafka-server-common", "kafka-storage", "kafka-tools")


@pytest.mark.parametrize(
    ("name", "needed"), [("java", "Java 17"), ("javac", "a JDK"), ("mvn", "Maven 3")]
)
def test_missing_tool_is_reported_with_its_package(
    monkeypatch: pytest.MonkeyPatch, name: str, needed: str
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(KafkaUnavailable, match=f"{name} is neither .*{needed}"):
        tool(name)


def test_unknown_version_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"no Kafka 0\.8"):
        class_path("0.8.2")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.usefixtures("reference", "old_reference")
def test_jars_have_the_requested_version(version: str) -> None:
    names = {jar.name for jar in jars(version)}
    assert {f"{name}-{version}.jar" for name in NEEDED} <= names
    assert sum(name.startswith(("log4j-slf4j-impl", "slf4j-reload4j")) for name in names) == 1


def test_reference_programs_have_different_versions(
    reference: KafkaReference, old_reference: KafkaReference
) -> None:
    assert (reference.version, old_reference.version) == VERSIONS
