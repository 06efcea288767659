//! Experts of decoded tokens.
