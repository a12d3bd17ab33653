//! The control plane without sockets, for fuzzing: takes the bytes of a connection and returns the
//! bytes of the responses.

use std::sync::{Arc, mpsc};

use appliance_config::Config;

use crate::appliance::Appliance;
pub use crate::control::probe::{ControlProbe, ProbedEntrance};
use crate::observe::Observatory;
use crate::observe::events::Events;
use crate::requests::RequestSender;

/// Starts an appliance with the configuration in `text`, which runs until the process ends, and a
/// control plane with `token`.
///
/// # Panics
/// The configuration or the token is invalid, or a resource of the appliance is not available.
#[must_use]
pub fn start(text: &str, token: &str) -> ControlProbe {
    let config = Config::parse("probe", text).expect("a right configuration");
    let (request_sender, requests) = RequestSender::new();
    let (sender, sources) = mpsc::channel();
    std::thread::spawn(move || {
        let mut appliance = Appliance::start(config, &Default::default()).expect("it starts");
        sender.send(appliance.sources_for_probe()).expect("awaited");
        appliance.compare_only(&requests);
    });
    let sources = sources.recv().expect("it has started");
    let observatory = Observatory::new(sources, Arc::new(Events::default()));
    ControlProbe::new(observatory, request_sender, token)
}
