"""`OffsetIndex`, `TimeIndex`, `TransactionIndex` and `LazyIndex`."""
