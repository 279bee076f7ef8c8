"""Charts: each is a function from arrays to rows of text (`draw_...`) and a thin widget around it."""
