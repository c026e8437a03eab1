"""Kafka's own image of a cluster, from its metadata log (`MetadataState.java`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from kafka_index.metadata import ClusterImage
from kafka_index.metadata.decoding import HIDDEN, is_public_config

from .kafka_jars import class_path, needing_kafka, tool

_SOURCE = Path(__file__).with_name("MetadataState.java")
_BROKER_FIELDS = ("broker_epoch", "incarnation_id", "rack", "is_fenced", "in_controlled_shutdown")


class KafkaImage:
    """A running `MetadataState`; a context manager."""

    def __init__(self) -> None:
        with needing_kafka():
            command = [tool("java"), "-Xmx512m", "-cp", class_path(), str(_SOURCE)]
            tool("javac")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            bufsize=1,
        )
        assert self._line() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def image_of(self, folder: Path) -> dict[str, Any]:
        """What Kafka makes of a metadata log, secrets hidden."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        line = self._line()
        assert not line.startswith("error"), line
        image: dict[str, Any] = json.loads(line)
        for resource, configs in image["configs"].items():
            for name in configs:
                if not is_public_config(int(resource.split()[0]), name):
                    configs[name] = HIDDEN
        return image

    @staticmethod
    def described(image: ClusterImage) -> dict[str, Any]:
        """Our image, in the same form."""
        found = {
            "topics": {
                topic.topic_id: {
                    "name": topic.name,
                    "partitions": {
                        str(number): {
                            name: getattr(partition, name) for name in partition.__slots__
                        }
                        for number, partition in topic.partitions.items()
                    },
                }
                for topic in image.topics.values()
            },
            "configs": {f"{kind} {name}": found for (kind, name), found in image.configs.items()},
            "brokers": {
                str(number): {name: getattr(broker, name) for name in _BROKER_FIELDS}
                | {"directories": sorted(broker.directories)}
                for number, broker in image.brokers.items()
            },
            "features": image.features,
            "next_producer_id": image.producer_ids.next_producer_id if image.producer_ids else -1,
        }
        # Tuples become lists.
        as_json: dict[str, Any] = json.loads(json.dumps(found))
        return as_json

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")
