"""What elastic training decides: options, triage, health, policy, goodput. No JAX, no clock."""
