"""The words and contracts that everything else is made of."""
