//! The tests of this package are in `tests/tests`.
