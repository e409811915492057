"""Training of every part of the demo checkpoint, on the product's own modules."""
