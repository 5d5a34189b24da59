"""The durable log and the rows behind it: one contract (`base`), one file per store, one test suite for all of them."""
