//! The fabric against the suite, and what only a fabric can be tested for.

mod suite;
