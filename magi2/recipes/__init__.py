"""What determines an artifact, and what of it is stored; torch-free."""
