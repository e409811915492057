"""The text encoder: Qwen3.5's text tower, cut two layers before its end, with MAGI-2's tokenizer quirk."""
