"""Where tasks run: here, local processes under a keeper that outlives psconform by no more than a moment."""
