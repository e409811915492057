"""Seeded damage to everything a store holds, and whether the product's own readers notice it."""
