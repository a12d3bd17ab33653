//! Reads the table `rate_limit`.

use super::Located;
use super::reader::Reader;
use crate::model::{Operations, RateLimit, RateScope};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::table::Table as _;
use crate::value::{Name, Nqn};

/// A rate limit, as far as it is readable.
#[derive(Debug)]
pub(crate) struct RateLimitDraft {
    /// The name of its device, as written.
    pub(crate) device: Option<Located<String>>,
    /// Its export.
    pub(crate) export: Option<Located<Nqn>>,
    /// What it counts, at the place of its device or host.
    pub(crate) scope: Option<Located<RateScope>>,
    pub(crate) operations: Option<Operations>,
    limit: Option<RateLimit>,
}

impl RateLimitDraft {
    pub(super) fn read(table: &Reader<'_, '_>, findings: &mut Findings) -> RateLimitDraft {
        let scope = scope(table, findings);
        if !table.has("iops") && !table.has("bandwidth") {
            findings.add(|| Finding {
                hint: Some("add `iops`, `bandwidth` or both".to_owned()),
                ..table.missing(
                    "iops",
                    "the limit has neither `iops` nor `bandwidth`".to_owned(),
                )
            });
        }
        let limit = RateLimit::read(
            table,
            findings,
            scope.as_ref().map(|it| (it.value.clone(),)),
        );
        // The faults of these keys are already reported.
        let found = &mut Findings::default();
        let operations = table.optional::<Operations>("operations", found);
        RateLimitDraft {
            device: table.optional("device", found),
            export: table.optional("export", found),
            scope,
            operations: match table.has("operations") {
                true => operations.map(|it| it.value),
                false => Some(Operations::Both),
            },
            limit,
        }
    }

    pub(super) fn finish(self) -> Option<RateLimit> {
        self.limit
    }
}

fn scope(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Located<RateScope>> {
    let device = table.optional::<Name>("device", findings);
    let host = table.optional::<Nqn>("host", findings);
    let export = table.optional::<Nqn>("export", findings);
    let place = |located: &Located<Nqn>, value| Located {
        value,
        span: located.span.clone(),
        path: located.path.clone(),
    };
    match (table.has("device"), table.has("host"), table.has("export")) {
        (true, false, false) => device.map(|device| Located {
            value: RateScope::Device(device.value),
            span: device.span,
            path: device.path,
        }),
        (false, true, false) => {
            let host = host?;
            Some(place(&host, RateScope::Host(host.value.clone())))
        }
        (false, true, true) => {
            let (host, export) = (host?, export?.value);
            let (of_host, host) = (&host, host.value.clone());
            Some(place(of_host, RateScope::HostAt { host, export }))
        }
        (true, _, _) => {
            let other = if table.has("host") { "host" } else { "export" };
            findings.add(|| Finding {
                hint: Some("write a limit of its own for each".to_owned()),
                ..table.at_key(
                    other,
                    ProblemKind::Conflict,
                    format!("`device` and `{other}` exclude each other"),
                )
            });
            None
        }
        (false, false, true) => {
            findings.add(|| Finding {
                hint: Some("add the `host` that is limited at this export".to_owned()),
                ..table.missing("host", "a limit with an `export` has no `host`".to_owned())
            });
            None
        }
        (false, false, false) => {
            findings.add(|| Finding {
                hint: Some("add the `device` or the `host` that is limited".to_owned()),
                ..table.missing(
                    "host",
                    "the limit has neither `device` nor `host`".to_owned(),
                )
            });
            None
        }
    }
}
