"""What the tests do with a PostgreSQL server of their own."""
