//! Metrics of latencies and errors.

use std::collections::BTreeMap;
use std::fmt;

use nvme_spec::Status;
use nvme_spec::status::StatusCodeType;
use nvme_target::{LatencyCounts, Measured, OperationCounts, Stage};
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::{Families, Labels, Samples, Scrape};
use crate::control::limits::STATUS_LABELS_MAX;

/// The bounds of the histograms' buckets, as powers of two of nanoseconds: 4 µs to 4.3 s.
const BOUND_SHIFTS: std::ops::RangeInclusive<u32> = 12..=32;

impl Families<'_, '_> {
    /// Writes the histograms that are not empty.
    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        samples: Vec<(Labels, LatencyCounts)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().filter(|(_, counts)| counts.count() > 0);
        let samples: Vec<_> = samples.collect();
        if samples.is_empty() {
            return Ok(());
        }
        let kind = MetricType::Histogram;
        let mut family = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        for (labels, counts) in samples {
            let mut below = 0;
            let bounds = BOUND_SHIFTS.map(|shift| {
                let bound = 1_u64 << shift;
                let more = counts.count_below(bound) - below;
                below += more;
                (bound as f64 / 1e9, more)
            });
            let mut buckets: Vec<_> = bounds.collect();
            let all = counts.count();
            buckets.push((f64::INFINITY, all - below));
            let sum = counts.sum_ns as f64 / 1e9;
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(sum, all, &buckets, None)?;
        }
        Ok(())
    }
}

impl Scrape {
    pub(super) fn latency(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let latency = &self.seen.latency;
        let stages = latency.subsystems.iter().flat_map(|(nqn, stages)| {
            let parts = Stage::ALL
                .into_iter()
                .filter(|stage| *stage != Stage::Total);
            parts.flat_map(move |stage| {
                let labels = vec![("export", nqn.clone()), ("stage", stage.word().to_owned())];
                by_operation(&labels, &stages[stage])
            })
        });
        let help = "Time of commands in a stage, for those that waited: for a buffer, for the \
                    host's data (fetch), in a device, for sending the response (send). At most 8 \
                    histograms of an export.";
        out.histograms("export_stage", help, stages.collect())?;
        let totals = latency.subsystems.iter().flat_map(|(nqn, stages)| {
            by_operation(&vec![("export", nqn.clone())], &stages[Stage::Total])
        });
        let help = "Latency of commands, from the turn that receives them to the end of the turn \
                    that sends their response. The rate of the sum is the mean number in flight. \
                    At most 2 histograms of an export.";
        out.histograms("export_latency", help, totals.collect())?;
        let reactors = latency
            .reactors
            .iter()
            .enumerate()
            .flat_map(|(index, counts)| {
                by_operation(&vec![("reactor", index.to_string())], counts)
            });
        let help = "The same by reactor. At most 2 histograms of a reactor.";
        out.histograms("reactor_latency", help, reactors.collect())?;
        let devices = self.seen.devices.iter().zip(&latency.devices);
        let devices = devices.flat_map(|(device, counts)| {
            by_operation(&vec![("device", device.name.clone())], counts)
        });
        let help = "How long commands were in a device; reads of memory that it lends are not. At \
                    most 2 histograms of a device.";
        out.histograms("device_latency", help, devices.collect())
    }

    /// Writes the errors by export and status.
    pub(super) fn statuses(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let mut reported: BTreeMap<(String, u8, u8), u64> = BTreeMap::new();
        let mut left_out = 0_u64;
        let all = &self.seen.statuses;
        let exports = all
            .subsystems
            .iter()
            .map(|(nqn, counts)| (nqn.as_str(), counts));
        for (nqn, counts) in exports.chain([("", &all.elsewhere)]) {
            left_out += counts.others;
            for (status, count) in counts.each() {
                let key = (nqn.to_owned(), status.sct().0, status.sc());
                if reported.len() < STATUS_LABELS_MAX || reported.contains_key(&key) {
                    *reported.entry(key).or_default() += count;
                } else {
                    left_out += count;
                }
            }
        }
        let samples: Samples = reported
            .into_iter()
            .map(|((export, sct, sc), count)| {
                let status = Status::new(StatusCodeType(sct), sc);
                let labels = vec![
                    ("export", export),
                    ("sct", format!("{sct:x}h")),
                    ("sc", format!("{sc:02x}h")),
                    ("status", status.text().unwrap_or("unknown").to_owned()),
                ];
                (labels, count)
            })
            .collect();
        let help = format!(
            "Commands that ended with an error, by type and code of their status; \
             without an export those of discovery and of Connect. At most \
             {STATUS_LABELS_MAX} series; what is beyond is in windlass_command_statuses_left_out."
        );
        out.counter("command_statuses", &help, samples)?;
        let help = "Errors beyond the bound of labels.";
        out.counter(
            "command_statuses_left_out",
            help,
            vec![(Vec::new(), left_out)],
        )
    }
}

fn by_operation(labels: &Labels, counts: &OperationCounts) -> [(Labels, LatencyCounts); 2] {
    [(Measured::Read, "read"), (Measured::Write, "write")].map(|(measured, word)| {
        let mut labels = labels.clone();
        labels.push(("operation", word.to_owned()));
        (labels, counts[measured].clone())
    })
}
