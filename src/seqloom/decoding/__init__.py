"""One search for every model: how tokens are chosen, one after another, from any `Steppable`."""
