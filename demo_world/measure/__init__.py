"""How well a checkpoint of the demo's world does over the whole path, from prompts to judged files."""
