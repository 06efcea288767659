// Attention of decoded tokens.
