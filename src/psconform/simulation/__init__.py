"""A deterministic model of ps/worker training in virtual time, which `psconform simulate` runs; see docs/model.md."""
