"""Real servers for the tests: S3, HDFS, and a proxy that draws faults between us and S3."""
