// Experts of decoded tokens.
