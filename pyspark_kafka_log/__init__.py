"""The door for Spark, which imports modules ``pyspark_*`` and registers their ``DefaultSource``.

Nothing here may fail or load anything heavy, since that would break the lookup of every Python data
source on a cluster. The source itself is `kafka_index.spark.data_source`, loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    pass  # without Spark there is nothing to find
else:
    if TYPE_CHECKING:
        from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """The data source ``kafka-log``."""

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            return "kafka-log"

        def schema(self) -> StructType:
            """Return the schema that the options ask for."""
            schema: StructType = self._source().schema()
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            """Return the reader of a schema."""
            reader: DataSourceReader = self._source().reader(schema)
            return reader

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001, because Spark calls it so
            """Return the writer of rows."""
            writer: DataSourceWriter = self._source().writer(schema, overwrite)
            return writer

        def _source(self) -> Any:
            from kafka_index.spark.data_source import KafkaLogSource  # noqa: PLC0415, it is heavy

            return KafkaLogSource(self.options)
