"""The claims of this project about speed and memory, measured against Kafka on this machine."""
