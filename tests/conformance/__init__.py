"""The real Kafka as judge: what its recovery leaves on disk, held against what a build leaves."""
