"""Records in, tables, figures and a page out; trains nothing."""
