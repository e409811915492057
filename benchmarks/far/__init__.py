"""What a store far away costs: a server that counts its requests, clips that were never rendered, a slow line."""
