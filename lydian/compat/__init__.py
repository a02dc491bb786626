"""Other people's interfaces, forwarding to Lydian. Nothing of Lydian imports this package."""
