"""The durable log and its rows: one contract (`base`), one file per store, one test suite for all of them."""
