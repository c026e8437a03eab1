"""What this project claims about speed and memory, measured against Kafka on this machine."""
