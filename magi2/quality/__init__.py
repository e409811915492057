"""From a clip's measures to its defects, judged when somebody reads them; torch-free."""
