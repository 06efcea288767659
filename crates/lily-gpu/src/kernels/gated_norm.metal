// Norm and gate after the delta rule.
