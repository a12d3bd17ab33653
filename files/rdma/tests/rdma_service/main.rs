//! The service over the in-process fabric, on one thread and in virtual time, with clients that use
//! chunks as Linux does and with hostile ones.

mod data;
mod faults;
mod hostile;
mod listeners;
mod removal;
mod stage;
