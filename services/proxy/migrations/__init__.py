"""The PostgreSQL tables of the event log, by Alembic. SQLite files bring themselves up to date when opened."""
