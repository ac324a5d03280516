"""Redis: options of a connection (`connection`), clients and their errors (`client`)."""
