//! Experts' outputs into the residual stream, and the norm after it.
