"""The event log: trajectories, records, content, sealed content, waiting signals, consumers."""

from alembic import op

revision = "0001"
down_revision = None

_PARTITIONS = 16
"""By hash of the tenant. A list partition a tenant would need DDL, and so an owner's rights, whenever a tenant
first writes, and thousands of tenants would make planning slow; a hash needs neither, and 16 keep each
index small until there is reason for a bigger machine."""

_TABLES = {
    "logs": "position bigint NOT NULL, changes bigint NOT NULL, PRIMARY KEY (tenant)",
    "trajectories": """
      trajectory_id text COLLATE "C" NOT NULL, session_id text COLLATE "C", agent text COLLATE "C" NOT NULL,
      purpose text COLLATE "C" NOT NULL, opened bigint NOT NULL, opened_at text COLLATE "C" NOT NULL,
      last_at text COLLATE "C" NOT NULL, closed text COLLATE "C", next_seq integer NOT NULL,
      head text COLLATE "C" NOT NULL, PRIMARY KEY (tenant, trajectory_id)""",
    "records": """
      position bigint NOT NULL, id text COLLATE "C" NOT NULL, trajectory_id text COLLATE "C" NOT NULL,
      seq integer NOT NULL, record text COLLATE "C" NOT NULL, kind text COLLATE "C" NOT NULL,
      agent text COLLATE "C" NOT NULL, committed double precision NOT NULL, body bytea NOT NULL,
      PRIMARY KEY (tenant, position), UNIQUE (tenant, id), UNIQUE (tenant, trajectory_id, seq)""",
    "contexts": 'id text COLLATE "C" NOT NULL, body bytea NOT NULL, PRIMARY KEY (tenant, id)',
    "parts": """
      digest text COLLATE "C" NOT NULL, media_type text NOT NULL, data bytea NOT NULL, packed smallint NOT NULL,
      apart bigint,
      PRIMARY KEY (tenant, digest)""",
    "pending": """
      id text COLLATE "C" NOT NULL, target_kind text COLLATE "C" NOT NULL, target text COLLATE "C" NOT NULL,
      body bytea NOT NULL, arrived bigint NOT NULL, PRIMARY KEY (tenant, id)""",
    "sealed": """
      id text COLLATE "C" NOT NULL, trajectory_id text COLLATE "C" NOT NULL, data bytea NOT NULL,
      PRIMARY KEY (tenant, id)""",
    "trajectory_keys": """
      trajectory_id text COLLATE "C" NOT NULL, key_version integer NOT NULL, wrapped bytea,
      PRIMARY KEY (tenant, trajectory_id)""",
    "answers": 'id text COLLATE "C" NOT NULL, event_id text COLLATE "C" NOT NULL, PRIMARY KEY (tenant, id)',
    "consumers": 'name text COLLATE "C" NOT NULL, position bigint NOT NULL, PRIMARY KEY (tenant, name)',
    "probe": "id integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (tenant, id)",
}

_PARTITIONED = frozenset({"trajectories", "records", "parts", "sealed"})

_INDEXES = (
    "trajectories (tenant, opened)",
    "trajectories (tenant, session_id)",
    "trajectories (tenant, agent, last_at)",
    "trajectories (tenant, last_at) WHERE closed IS NULL",
    "pending (tenant, target)",
    "sealed (tenant, trajectory_id)",
    "trajectory_keys (tenant, key_version)",
)


def upgrade() -> None:
    # which tenants there are is no tenant's secret to the gateway, which must know them to ask for each
    op.execute('CREATE TABLE tenants (tenant text COLLATE "C" PRIMARY KEY)')
    for table, columns in _TABLES.items():
        partitioned = " PARTITION BY HASH (tenant)" if table in _PARTITIONED else ""
        op.execute(
            f"CREATE TABLE {table} (tenant text COLLATE \"C\" NOT NULL DEFAULT current_setting('app.tenant'), "
            f"{columns}){partitioned}"
        )
        _bind_to_tenant(table)
        if partitioned:
            for number in range(_PARTITIONS):
                part = f"{table}_{number}"
                op.execute(
                    f"CREATE TABLE {part} PARTITION OF {table} "
                    f"FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER {number})"
                )
                _bind_to_tenant(part)
    for index in _INDEXES:
        op.execute(f"CREATE INDEX ON {index}")


def downgrade() -> None:
    for table in ("tenants", *_TABLES):
        op.execute(f"DROP TABLE {table}")


def _bind_to_tenant(table: str) -> None:
    """No row of another tenant is seen or written, the owner's queries included; without a tenant, none at all."""
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY of_the_tenant ON {table} USING (tenant = current_setting('app.tenant', true)) "
        "WITH CHECK (tenant = current_setting('app.tenant', true))"
    )
