"""Alembic's entry: runs the steps on the connection that `record.migrations.run` hands over."""

from alembic import context

from crcr.record.schema.all_tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
