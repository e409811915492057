"""The published weights folder as a whole: its layout and fingerprints, verification, and a tiny random copy."""
