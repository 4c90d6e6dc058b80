"""What the fault tests are made of: servers, workers, a proxy, a load, an oracle, a table."""
