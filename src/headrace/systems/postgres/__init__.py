"""PostgreSQL: options of a connection (`connection`), connections and their errors (`server`), reading tables
(`tables`)."""
