//! The conformance suite for RDMA providers.
//!
//! A crate with its own provider calls [`run`],
//! or one of [`cases`] by name. A case panics if the provider violates the contract of the
//! [`Provider`] traits; the message names the step.

mod connections;
mod data;
mod failures;
pub(crate) mod harness;
mod queues;

use std::net::IpAddr;
use std::time::Duration;

use harness::Harness;
use rdma::Provider;

/// The provider under test and its address.
pub struct Subject<P: Provider> {
    /// The provider of the listening side.
    pub server: P,
    /// The provider of the connecting side; may be the same one.
    pub client: P,
    /// An address of a device of the server, reachable from the client.
    pub address: IpAddr,
    /// Called before each poll; advances an emulated device.
    pub step: Box<dyn FnMut()>,
    /// How long any step may take before the case fails.
    pub step_timeout: Duration,
}

impl<P: Provider> Subject<P> {
    /// A subject that connects a provider to itself.
    #[must_use]
    pub fn of_one(provider: P, address: IpAddr) -> Self {
        Self {
            server: provider.clone(),
            client: provider,
            address,
            step: Box::new(|| {}),
            step_timeout: Duration::from_secs(30),
        }
    }
}

/// One case: its name and function.
pub struct Case<P: Provider> {
    /// The name, usable on a command line.
    pub name: &'static str,
    run: fn(&mut Harness<'_, P>),
}

impl<P: Provider> Case<P> {
    /// Runs the case on a fresh harness.
    ///
    /// # Panics
    /// Panics if the provider violates the contract.
    pub fn run(&self, subject: &mut Subject<P>) {
        (self.run)(&mut Harness::new(subject, self.name));
    }
}

macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        /// All cases.
        #[must_use]
        pub fn cases<P: Provider>() -> Vec<Case<P>> {
            vec![$($(Case {
                name: stringify!($case),
                run: $module::$case,
            },)*)*]
        }
    };
}

cases! {
    connections:
        devices_report_their_limits
        both_sides_exchange_parameters
        a_listener_gets_an_exclusive_port
        a_port_without_listener_rejects
        a_foreign_address_is_refused
        a_reject_carries_private_data
        a_dropped_request_is_rejected
        a_request_moves_to_another_thread
        too_much_private_data_is_refused
        channels_are_readable_when_they_have_something
        a_disconnect_notifies_both_sides_and_flushes
        a_dropped_connection_notifies_the_peer
        many_connections_come_and_go;
    data:
        messages_of_all_sizes_arrive
        messages_gather_and_scatter
        inline_bytes_are_copied_when_queued
        writes_are_there_before_the_message_behind_them
        reads_return_the_remote_data
        unsignalled_requests_complete_in_silence
        the_last_of_a_turn_is_signalled_when_it_is_posted
        both_directions_at_once_keep_their_order
        a_window_grants_access_and_is_invalidated_by_the_peer
        a_window_is_invalidated_by_its_owner;
    failures:
        a_wrong_remote_key_is_an_access_error
        writing_beyond_a_registration_is_an_access_error
        writing_without_the_right_is_an_access_error
        a_registration_that_ended_is_an_access_error
        a_wrong_local_key_is_a_protection_error
        a_message_longer_than_its_receive_fails_on_both_sides
        without_a_receive_a_message_waits
        without_a_receive_retries_end
        work_behind_an_error_is_flushed_in_order
        an_error_state_flushes_what_is_posted_later
        a_destroyed_queue_pair_takes_nothing_more
        limits_are_refused_by_name;
    queues:
        a_shared_receive_queue_serves_several
        a_shared_receive_queue_reports_the_low_limit
        a_completion_wakes_a_sleeper_once
        solicited_completions_wake_and_others_do_not
        completions_are_polled_in_batches
        depths_that_were_granted_can_be_used
        children_keep_their_parents;
}

/// Runs all cases in sequence.
///
/// # Panics
/// Panics if the provider violates the contract.
pub fn run<P: Provider>(subject: &mut Subject<P>) {
    for case in cases() {
        case.run(subject);
    }
}
