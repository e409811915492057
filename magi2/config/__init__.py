"""Configuration: profiles and architectures (`profile`, `load`) and the `MAGI2_*` environment (`settings`)."""
