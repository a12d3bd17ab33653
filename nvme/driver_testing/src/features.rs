//! Features (Base 2.1 §5.1.25): values, defaults and checks.

use nvme_spec::Status;
use nvme_spec::command::{FeatureId, FeatureSelect, Sqe};
use nvme_spec::features::{
    AsyncEventConfiguration, FeatureCapabilities, HostBehavior, InterruptVector, NumberOfQueues,
    TemperatureThreshold, ThresholdType, VolatileWriteCache,
};
use zerocopy::IntoBytes;

use super::bus::Bus;
use super::options::{CopyAcross, EmulatedOptions, SglRules};
use super::state::{Outcome, State};
use super::transfer::PointerRules;

/// Features with a value of one dword that only Get Features reads.
const PLAIN: [(FeatureId, u32); 5] = [
    (FeatureId::ARBITRATION, 0),
    (FeatureId::POWER_MANAGEMENT, 0),
    (FeatureId::ERROR_RECOVERY, 0),
    (FeatureId::INTERRUPT_COALESCING, 0),
    (FeatureId::WRITE_ATOMICITY, 0),
];

pub(super) struct Features {
    plain: [u32; PLAIN.len()],
    pub(super) write_cache: bool,
    pub(super) events: AsyncEventConfiguration,
    /// In kelvin: over temperature, under temperature.
    pub(super) thresholds: [u16; 2],
    pub(super) behavior: HostBehavior,
    has_cache: bool,
    has_behavior: bool,
}

/// Default of the over temperature threshold in kelvin.
const OVER_TEMPERATURE_KELVIN: u16 = 353;

impl Features {
    pub(super) fn new(options: &EmulatedOptions) -> Self {
        Self {
            plain: PLAIN.map(|(_, default)| default),
            write_cache: options.write_cache,
            events: AsyncEventConfiguration::new(),
            thresholds: [OVER_TEMPERATURE_KELVIN, 0],
            behavior: HostBehavior::default(),
            has_cache: options.write_cache,
            has_behavior: options
                .copy
                .is_some_and(|it| it.across == CopyAcross::Supported),
        }
    }
}

fn plain_index(feature: FeatureId) -> Option<usize> {
    PLAIN.iter().position(|(id, _)| *id == feature)
}

impl State {
    fn number_of_queues(&self) -> u32 {
        let pairs = self.options.io_queues_max - 1;
        NumberOfQueues::new()
            .with_nsq_z(pairs)
            .with_ncq_z(pairs)
            .into_bits()
    }

    pub(super) fn get_features(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        let command = sqe.get_features();
        let (feature, select) = (command.select.fid(), command.select.sel());
        let defaults = Features::new(&self.options);
        let features = match select {
            FeatureSelect::CURRENT => &self.features,
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => &defaults,
            FeatureSelect::SUPPORTED_CAPABILITIES => return capabilities(feature),
            _ => return Status::INVALID_FIELD.with_dnr().into(),
        };
        let value = match feature {
            FeatureId::VOLATILE_WRITE_CACHE if features.has_cache => VolatileWriteCache::new()
                .with_wce(features.write_cache)
                .into_bits(),
            FeatureId::HOST_BEHAVIOR if features.has_behavior => {
                let behavior = features.behavior;
                let bytes = behavior.as_bytes();
                return self.send_admin(bus, sqe, bytes, bytes.len()).into();
            }
            FeatureId::NUMBER_OF_QUEUES => self.number_of_queues(),
            FeatureId::ASYNC_EVENT_CONFIGURATION => features.events.into_bits(),
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let vector = InterruptVector::from_bits(command.cdw11.get()).iv();
                InterruptVector::new().with_iv(vector).into_bits()
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let asked = TemperatureThreshold::from_bits(command.cdw11.get());
                u32::from(features.thresholds[usize::from(asked.thsel().0 & 1)])
            }
            _ => match plain_index(feature) {
                Some(index) => features.plain[index],
                None => return Status::INVALID_FIELD.with_dnr().into(),
            },
        };
        Outcome::Done(Status::SUCCESS, u64::from(value))
    }

    pub(super) fn set_features(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        let command = sqe.set_features();
        if command.select.sv() {
            return Status::FEATURE_NOT_SAVEABLE.with_dnr().into();
        }
        let value = command.cdw11.get();
        match command.select.fid() {
            FeatureId::VOLATILE_WRITE_CACHE if self.features.has_cache => {
                self.features.write_cache = VolatileWriteCache::from_bits(value).wce();
                if !self.features.write_cache {
                    self.flush_all();
                }
            }
            FeatureId::HOST_BEHAVIOR if self.features.has_behavior => {
                return self.set_behavior(bus, sqe).into();
            }
            FeatureId::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            FeatureId::ASYNC_EVENT_CONFIGURATION => {
                self.features.events = AsyncEventConfiguration::from_bits(value);
            }
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                if InterruptVector::from_bits(value).iv() >= self.options.interrupt_vectors {
                    return Status::INVALID_FIELD.with_dnr().into();
                }
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let asked = TemperatureThreshold::from_bits(value);
                if asked.thsel() > ThresholdType::UNDER {
                    return Status::INVALID_FIELD.with_dnr().into();
                }
                self.features.thresholds[usize::from(asked.thsel().0)] = asked.tmpth();
            }
            feature => match plain_index(feature) {
                Some(index) => self.features.plain[index] = value,
                None => return Status::INVALID_FIELD.with_dnr().into(),
            },
        }
        Status::SUCCESS.into()
    }

    fn set_behavior(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let mut behavior = HostBehavior::default();
        let bytes = behavior.as_mut_bytes();
        let rules = PointerRules {
            page: self.page(),
            sgl: SglRules::Unsupported,
        };
        self.transfer.gather(bus, sqe, bytes.len(), rules)?;
        self.transfer.fetch(bus, bytes)?;
        self.features.behavior = behavior;
        Ok(())
    }

    fn set_number_of_queues(&mut self, value: u32) -> Outcome {
        if NumberOfQueues::from_bits(value).is_invalid_request() {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let has_queues = self.completion.iter().skip(1).any(|queue| queue.live);
        if has_queues {
            return Status::COMMAND_SEQUENCE_ERROR.with_dnr().into();
        }
        Outcome::Done(Status::SUCCESS, u64::from(self.number_of_queues()))
    }
}

fn capabilities(feature: FeatureId) -> Outcome {
    let known = plain_index(feature).is_some()
        || matches!(
            feature,
            FeatureId::VOLATILE_WRITE_CACHE
                | FeatureId::NUMBER_OF_QUEUES
                | FeatureId::ASYNC_EVENT_CONFIGURATION
                | FeatureId::INTERRUPT_VECTOR_CONFIGURATION
                | FeatureId::TEMPERATURE_THRESHOLD
        );
    if !known {
        return Status::INVALID_FIELD.with_dnr().into();
    }
    let changeable = FeatureCapabilities::new().with_changeable(true);
    Outcome::Done(Status::SUCCESS, u64::from(changeable.into_bits()))
}
