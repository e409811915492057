#!/bin/sh
# Gives the catalog a database and a role of its own beside Airflow's. Run once, by the first start of an empty server.
set -eu

# The password reaches psql by its environment, never as an argument.
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'END'
\getenv password CATALOG_PASSWORD
CREATE ROLE magi2 LOGIN PASSWORD :'password';
CREATE DATABASE magi2 OWNER magi2;
REVOKE CONNECT ON DATABASE magi2 FROM PUBLIC;
END
