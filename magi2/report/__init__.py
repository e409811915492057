"""What became of a batch: every clip that failed by name, stage and reason."""
