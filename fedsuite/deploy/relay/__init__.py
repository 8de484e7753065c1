"""What a site lets apps do and lets out: policy, relay, shelter, ledger, audit."""
