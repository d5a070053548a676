"""Rolling reload: workers are swapped, lanes are migrated."""
