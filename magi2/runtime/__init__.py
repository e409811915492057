"""Stages in processes of their own: started, watched, and ended with everything they started. Linux only."""
