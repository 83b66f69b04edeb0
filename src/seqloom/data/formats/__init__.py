"""File formats whose rows are not lines of text: Arrow tables and translation memories."""
