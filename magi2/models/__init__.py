"""Single-device definitions of every MAGI-2 network; they know nothing of stores, stages or clusters."""
