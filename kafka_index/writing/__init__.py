"""Tables to logs, and dumps to dumps without some of their records."""
