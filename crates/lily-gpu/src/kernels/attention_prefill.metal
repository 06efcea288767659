// Attention of prompts.
