"""What commands print: tables, lines, JSON, pictures. Nothing here looks anything up."""
