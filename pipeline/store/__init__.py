"""The database: connections and transactions (`db`), schema, the one migrating child, search text."""
