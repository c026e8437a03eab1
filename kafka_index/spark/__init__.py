"""The Spark engine: DataFrame in, DataFrame out, over the same per-segment functions.

Sessions come from outside and nothing here uses a SparkContext, so that all of it runs on Spark
Connect as well (`kafka_index.spark.jobs` is the one place that distinguishes them).
"""
