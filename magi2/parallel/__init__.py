"""How one model's work is spread over ranks: the layout, its process groups, what they exchange and what it costs."""
