"""Audio autoencoder of Stable Audio Open: the decoding half, and the resampling to 44.1 kHz."""
