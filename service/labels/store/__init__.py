"""The label store: SQLite or PostgreSQL."""
