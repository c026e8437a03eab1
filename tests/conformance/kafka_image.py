"""Kafka's own image of a cluster, from its metadata log (`MetadataState.java`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kafka_index.metadata import ClusterImage
from kafka_index.metadata.decoding import HIDDEN, is_public_config

from .java_program import JavaProgram

_BROKER_FIELDS = ("broker_epoch", "incarnation_id", "rack", "is_fenced", "in_controlled_shutdown")


class KafkaImage(JavaProgram):
    """A running `MetadataState`."""

    def __init__(self) -> None:
        super().__init__("MetadataState")

    def image_of(self, folder: Path) -> dict[str, Any]:
        """Kafka's image of a metadata log, secrets hidden."""
        line = self.ask(folder)
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
