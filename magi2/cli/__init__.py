"""The `magi2` command: the same stages by hand, one module per group of commands."""
