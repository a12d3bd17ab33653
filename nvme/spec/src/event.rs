//! Asynchronous events: dword 0 of a completed Asynchronous Event Request (Base 2.1 §5.1.2.1).

use bitfield_struct::bitfield;

use crate::command::LogPageId;

open_enum! {
    /// Asynchronous Event Type (Base 2.1 §5.1.2.1, AET).
    pub struct EventType(u8) {
        ERROR = 0, "error status";
        SMART_HEALTH = 1, "SMART / health status";
        NOTICE = 2, "notice";
        IMMEDIATE = 3, "immediate";
        ONE_SHOT = 4, "one-shot";
        IO_COMMAND_SPECIFIC = 6, "I/O command specific status";
        VENDOR = 7, "vendor specific";
    }
}

/// Dword 0 of the completion (Base 2.1 §5.1.2.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type.
    #[bits(3)]
    pub event_type: EventType,
    #[bits(5)]
    __: u8,
    /// Asynchronous Event Information: its meaning depends on the type.
    pub information: u8,
    /// Log page that clears the event when read.
    #[bits(8)]
    pub log_page: LogPageId,
    __: u8,
}
const _: () = assert!(size_of::<AsyncEvent>() == 4);

impl AsyncEvent {
    const fn of(event_type: EventType, information: u8, log_page: LogPageId) -> Self {
        Self::new()
            .with_event_type(event_type)
            .with_information(information)
            .with_log_page(log_page)
    }

    const fn notice(information: u8, log_page: LogPageId) -> Self {
        Self::of(EventType::NOTICE, information, log_page)
    }

    const fn error(information: u8) -> Self {
        Self::of(EventType::ERROR, information, LogPageId::ERROR_INFORMATION)
    }

    const fn health(information: u8) -> Self {
        Self::of(
            EventType::SMART_HEALTH,
            information,
            LogPageId::SMART_HEALTH,
        )
    }

    /// Error: write to an invalid doorbell register.
    pub const INVALID_DOORBELL_REGISTER: Self = Self::error(0x00);
    /// Error: invalid doorbell write value.
    pub const INVALID_DOORBELL_VALUE: Self = Self::error(0x01);
    /// Error: diagnostic failure.
    pub const DIAGNOSTIC_FAILURE: Self = Self::error(0x02);
    /// Error: persistent internal error.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self::error(0x03);
    /// Error: transient internal error.
    pub const TRANSIENT_INTERNAL_ERROR: Self = Self::error(0x04);
    /// Error: firmware image load error.
    pub const FIRMWARE_IMAGE_LOAD_ERROR: Self = Self::error(0x05);

    /// Health: NVM subsystem reliability.
    pub const RELIABILITY: Self = Self::health(0x00);
    /// Health: temperature threshold.
    pub const TEMPERATURE_THRESHOLD: Self = Self::health(0x01);
    /// Health: spare below threshold.
    pub const SPARE_BELOW_THRESHOLD: Self = Self::health(0x02);

    /// Notice: an attached namespace changed; the Changed Attached Namespace List identifies it.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self =
        Self::notice(0x00, LogPageId::CHANGED_ATTACHED_NAMESPACES);
    /// Notice: firmware activation starting.
    pub const FIRMWARE_ACTIVATION_STARTING: Self = Self::notice(0x01, LogPageId::FIRMWARE_SLOT);
    /// Notice: telemetry log changed.
    pub const TELEMETRY_LOG_CHANGED: Self = Self::notice(0x02, LogPageId::TELEMETRY_CONTROLLER);
    /// Notice: Asymmetric Namespace Access changed.
    pub const ANA_CHANGED: Self = Self::notice(0x03, LogPageId::ANA);
    /// Notice: the Discovery log changed.
    pub const DISCOVERY_LOG_CHANGED: Self = Self::notice(0xf0, LogPageId::DISCOVERY);

    /// I/O command specific: a Reservation Notification log page is available.
    pub const RESERVATION_LOG_AVAILABLE: Self = Self::of(
        EventType::IO_COMMAND_SPECIFIC,
        0x00,
        LogPageId::RESERVATION_NOTIFICATION,
    );
    /// I/O command specific: sanitize operation completed.
    pub const SANITIZE_COMPLETED: Self = Self::of(
        EventType::IO_COMMAND_SPECIFIC,
        0x01,
        LogPageId::SANITIZE_STATUS,
    );
}
