"""Tables to logs, and logs to logs without some of their records."""
