//! Whether the side-cars of a CSI driver are there, and how they run.
//!
//! In: leases, events and the pods of drivers, as far as they were read. Out: seen, gone, without lease, not seen, or not
//! known. A side-car may run without leader election: without a lease it counts as absent when it was asked and has said
//! nothing for two minutes. If nothing else shows the driver, either (no CSIDriver object, no event), it counts so also
//! where nobody knows when it was asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apiserver::{
    ids::{DriverName, PodKey},
    kinds::{CsiDriver, ObjectRef},
};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Event},
    jiff::Timestamp,
};
use serde_json::Value;
use strum::IntoStaticStr;

use super::{
    age,
    snapshot::{LEASES, Snapshot},
    subject::field,
};
use crate::fence::arguments::{value, words_of};

/// Which side-car.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Sidecar {
    /// The external-attacher.
    Attacher,
    /// The external-provisioner.
    Provisioner,
    /// The external-resizer.
    Resizer,
}

/// Whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its lease is fresh.
    Seen,
    /// Its lease was renewed last at this time.
    Gone(Timestamp),
    /// It has no lease, though its driver is installed: it runs without leader election, or it does not run.
    NoLease,
    /// Nothing shows that there ever was one.
    NotSeen,
    /// It could not be told from what was read.
    Unknown,
}

/// Requests per second of a client to which nothing else was said (client-go), and of side-cars, which take that over.
const DEFAULT_QPS: f64 = 5.0;

/// For how long after its term a lease still counts: a side-car may just be restarting.
const ALLOWANCE: Duration = Duration::from_mins(1);

/// A side-car that runs does something about a request in that time, and be it that it reports an error.
pub(super) const SILENCE: Duration = Duration::from_mins(2);

/// The term of a lease that does not say (client-go).
const TERM_SECONDS: i32 = 15;

/// Who said an event.
pub(super) fn source(event: &Event) -> Option<&str> {
    let component = event.source.as_ref().and_then(|source| source.component.as_deref());
    component.or(event.reporting_component.as_deref())
}

/// What is known of all side-cars.
#[derive(Debug)]
pub struct Sidecars<'a> {
    snapshot: &'a Snapshot,
    leases: BTreeMap<&'a str, &'a Lease>,
    event_sources: BTreeSet<&'a str>,
}

impl<'a> Sidecars<'a> {
    /// Reads the evidence once.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let mut leases: BTreeMap<&str, &Lease> = BTreeMap::new();
        // Who renews it in a time to come is no side-car.
        let latest = snapshot.taken_at.checked_add(ALLOWANCE).ok();
        for lease in snapshot.leases.iter().filter(|lease| renewed(lease) <= latest) {
            // Of several namespaces the one that is renewed: a lease of the name that somebody else made hides no side-car.
            let known = leases.entry(lease.metadata.name.as_deref().unwrap_or_default()).or_insert(lease);
            if renewed(lease) > renewed(known) {
                *known = lease;
            }
        }
        // The provisioner calls itself <driver>_<pod>_<uuid>.
        let sources = snapshot.events.iter().filter_map(|event| source(event)?.split('_').next());
        let event_sources = sources.filter(|source| !source.is_empty()).collect();
        Self { snapshot, leases, event_sources }
    }

    /// The lease of a side-car.
    pub fn lease(&self, driver: &str, sidecar: Sidecar) -> Option<&'a Lease> {
        let names = match sidecar {
            Sidecar::Attacher => vec![format!("external-attacher-leader-{}", sanitized(driver))],
            // Provisioners that are not CSI's only take the slashes out (sig-storage-lib-external-provisioner).
            Sidecar::Provisioner => vec![sanitized(driver), driver.replace('/', "-")],
            // external-resizer: cmd/csi-resizer/main.go.
            Sidecar::Resizer => vec![format!("external-resizer-{}", sanitized(driver))],
        };
        names.iter().find_map(|name| self.leases.get(name.as_str()).copied())
    }

    /// Namespace and name of the pod that holds the lease of a side-car, as far as the lease tells.
    pub fn holder(&self, driver: &str, sidecar: Sidecar) -> Option<(&'a str, &'a str)> {
        let lease = self.lease(driver, sidecar)?;
        // Some identities go on after the name of the pod.
        let pod = lease.spec.as_ref()?.holder_identity.as_deref()?.split('_').next()?;
        Some((lease.metadata.namespace.as_deref()?, pod)).filter(|(_, pod)| !pod.is_empty())
    }

    /// Whether a side-car is there.
    pub fn presence(&self, driver: &str, sidecar: Sidecar) -> Presence {
        let now = self.snapshot.taken_at;
        if let Some(lease) = self.lease(driver, sidecar) {
            let spec = lease.spec.as_ref();
            let Some(renewed) = renewed(lease) else { return Presence::Unknown };
            let term = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(TERM_SECONDS);
            let term = Duration::from_secs(u64::try_from(term).unwrap_or_default());
            let held = spec.and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|it| !it.is_empty());
            let until = renewed.checked_add(term + ALLOWANCE).unwrap_or(Timestamp::MAX);
            return if held && now <= until { Presence::Seen } else { Presence::Gone(renewed) };
        }
        let is_installed = self.snapshot.objects.drivers.get(&DriverName::from(driver)).is_some();
        let has_spoken = match sidecar {
            Sidecar::Attacher => false,
            Sidecar::Provisioner => self.event_sources.contains(driver),
            Sidecar::Resizer => self.event_sources.contains(format!("external-resizer {driver}").as_str()),
        };
        let was_looked_for = self.snapshot.was_read(LEASES) && self.snapshot.is_listed::<CsiDriver>();
        match (was_looked_for, has_spoken, is_installed) {
            (false, _, _) | (true, true, _) => Presence::Unknown,
            (true, false, true) => Presence::NoLease,
            (true, false, false) => Presence::NotSeen,
        }
    }

    /// Why a side-car that was asked for something at that time counts as absent, if it does.
    pub fn absence(&self, driver: &str, sidecar: Sidecar, asked: Option<Timestamp>) -> Option<String> {
        let (now, name) = (self.snapshot.taken_at, <&str>::from(sidecar));
        let is_long_ago = |it: Timestamp| it.checked_add(SILENCE).is_ok_and(|until| until < now);
        match self.presence(driver, sidecar) {
            Presence::Seen | Presence::Unknown => None,
            Presence::Gone(since) => {
                let age = age::between(since, now);
                Some(format!(
                    "{name} {driver} does not run: it was last seen {age} ago, and does not renew its lease"
                ))
            }
            Presence::NoLease => {
                let asked = asked.filter(|asked| is_long_ago(*asked))?;
                let age = age::between(asked, now);
                Some(format!(
                    "{name} {driver} was asked {age} ago and has not answered, and there is no lease of it: it does not \
                     run, or runs without leader election and does not get on"
                ))
            }
            // One without leader election, and without a CSIDriver, has not spoken yet.
            Presence::NotSeen if asked.is_some_and(|it| !is_long_ago(it)) => None,
            Presence::NotSeen => Some(format!(
                "{name} {driver} is not installed: there is no lease, no CSIDriver and no event of that name"
            )),
        }
    }

    /// Whether the side-car that holds the lease runs with the default limit of requests, or a smaller one, if its pod was read.
    pub fn is_limited(&self, driver: &str, sidecar: Sidecar) -> bool {
        self.client_limit(driver, sidecar).is_some_and(|qps| qps <= DEFAULT_QPS)
    }

    fn client_limit(&self, driver: &str, sidecar: Sidecar) -> Option<f64> {
        let (namespace, name) = self.holder(driver, sidecar)?;
        let pod = self.snapshot.details.get(&ObjectRef::Pod(PodKey::new(namespace, name)))?;
        let program = format!("csi-{}", <&str>::from(sidecar));
        let is_it = |it: &&Value| field(it, "image").contains(&program) || field(it, "name") == program;
        let words = words_of(pod.pointer("/spec/containers")?.as_array()?.iter().find(is_it)?);
        // Go's flags have one dash or two.
        let limit = value(&words, "--kube-api-qps").or_else(|| value(&words, "-kube-api-qps"));
        limit.map_or(Some(DEFAULT_QPS), |limit| limit.parse().ok())
    }
}

/// When a lease was renewed last: by the API server's clock where it tells when the lease was written, else by the holder's.
pub(super) fn renewed(lease: &Lease) -> Option<Timestamp> {
    let managed = lease.metadata.managed_fields.iter().flatten();
    let written = managed.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
    written.or_else(|| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0))
}

/// The finalizer that the external-attacher puts on volumes and attachments.
pub fn attacher_finalizer(driver: &str) -> String {
    format!("external-attacher/{}", sanitized(driver))
}

/// A driver's name where only letters, digits and dashes may stand, as the side-cars write it.
fn sanitized(driver: &str) -> String {
    let mut name: String =
        driver.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}
