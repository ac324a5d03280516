"""Dead letters and late rows: write, index, audit."""
