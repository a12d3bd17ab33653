//! Checks the types against the published layouts, positions and values.

mod authentication;
mod bits;
mod command;
mod layout;
mod pages;
mod prp;
mod sgl;
mod status;
mod tcp;
mod text;
