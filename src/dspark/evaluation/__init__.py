"""How good a drafter is: accepted length over prompt sets, with intervals."""
