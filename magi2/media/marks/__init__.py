"""What a delivered file says of itself: made by AI, by whom, from what; written at mux and read back from any file."""
