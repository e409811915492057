"""What comes in from outside: how large it may be, where its files may lie, how it is parsed and quoted."""
