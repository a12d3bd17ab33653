//! Volumes on simulated devices: a model of names and bytes, and power cuts at every moment.

#![forbid(unsafe_code)]

mod crash;
mod damage;
mod disk;
mod limits;
mod model;
mod names;
mod random;
mod workload;
