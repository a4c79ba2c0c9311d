"""What the documentation takes from the code: tables, pictures, and the check of its links."""
