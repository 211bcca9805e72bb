"""Alembic's entry: runs on the connection that `run.migrate` opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
