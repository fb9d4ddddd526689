"""Words for people: in sentences, in cells of a table, on a terminal, in pages."""
