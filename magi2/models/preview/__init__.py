"""The preview transformer: architecture, packing, loading."""
