"""Training of the demo checkpoint's transformer by flow matching, on the product's own model."""
