"""Two pairs of adjoint functions, and the sums of gradients."""
