// The likeliest tokens of each row of logits.
