"""A bounded run of random callers, faults and changes against a real router (`scripts/chaos`)."""
