// Linear attention of decoded tokens.
