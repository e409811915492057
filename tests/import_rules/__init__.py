"""What the tests of the import rules are made of: `reading` finds imports in the sources, `table` says who may import
whom."""
