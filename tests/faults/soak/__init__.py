"""The long form: a full load, and faults of all kinds at random, seeded, for minutes."""
