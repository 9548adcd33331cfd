//! The workers' counters as metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, UNIX_EPOCH};

use windlass_control::admin::{Programming, Readings, Sample, SampleKind};
use windlass_control::capture::live::Watched;
use windlass_control::inspect::Inspection;
use windlass_control::inspect::connections::{CLASSES, class};
use windlass_dataplane::counters::{Counters, SideCounters, Totals};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::worker::Workers;

use super::inspect::Subject;
use super::record::Record;

/// How often connections are counted by state, however often somebody asks: it takes a look at each of them.
const CENSUS_EVERY: Duration = Duration::from_secs(10);

/// Reads the counters of workers for as long as they live.
pub(super) struct WorkerReadings {
    workers: Weak<Workers>,
    counters: Vec<Arc<Counters>>,
    subject: Arc<Subject>,
    connections: Arc<Conntrack>,
    census: Mutex<Option<(Instant, Census)>>,
    reloads: Arc<Record>,
}

/// Connections by protocol and state.
type Census = BTreeMap<(&'static str, &'static str), u64>;

impl WorkerReadings {
    /// Readings of these workers, of reloads, and of the tables.
    pub(super) fn new(workers: &Arc<Workers>, reloads: Arc<Record>, subject: Arc<Subject>) -> Self {
        Self {
            workers: Arc::downgrade(workers),
            counters: workers.counters().to_vec(),
            connections: Arc::clone(workers.connections()),
            census: Mutex::default(),
            reloads,
            subject,
        }
    }

    fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.counters.iter().map(|counters| of(counters)).sum()
    }
}

impl Readings for WorkerReadings {
    fn samples(&self) -> Vec<Sample> {
        let mut samples = self.traffic();
        let mut counter = |name, help, value| samples.push(plain(name, help, SampleKind::Counter, value));
        counter("windlass_generated_total", GENERATED, self.sum(|all| all.generated.get()));
        counter("windlass_flow_cache_hits_total", HITS, self.sum(|all| all.cache_hits.get()));
        counter("windlass_flow_cache_misses_total", MISSES, self.sum(|all| all.cache_misses.get()));
        counter("windlass_reserved_bits_total", RESERVED, self.sum(|all| all.reserved_bits.get()));
        counter("windlass_icmp_suppressed_total", SUPPRESSED, self.sum(|all| all.errors_suppressed.get()));
        counter("windlass_neighbors_answered_total", ANSWERED, self.sum(|all| all.neighbors_answered.get()));
        counter("windlass_stations_refused_total", REFUSED, self.sum(|all| all.stations_refused.get()));
        for reason in DropReason::ALL {
            samples.push(Sample {
                name: "windlass_drops_total",
                help: "Wire-size packets dropped, by reason.",
                kind: SampleKind::Counter,
                labels: vec![("reason", reason.name().to_owned())],
                value: self.sum(|all| all.dropped(*reason)),
            });
        }
        let totals: Totals = self.counters.iter().map(|counters| counters.totals()).sum();
        let lost = totals.difference().unsigned_abs();
        samples.push(plain("windlass_unaccounted_packets", UNACCOUNTED, SampleKind::Gauge, lost));
        let workers = self.counters.len() as u64;
        samples.push(plain("windlass_workers", "Threads that forward.", SampleKind::Gauge, workers));
        samples.extend(self.connection_samples());
        samples.extend(self.table_samples());
        samples.extend(self.reload_samples());
        samples
    }

    fn inspection(&self) -> Option<Inspection> {
        self.workers.upgrade().map(|workers| self.subject.inspection(&workers))
    }

    fn watched(&self) -> Option<Watched> {
        let workers = self.workers.upgrade()?;
        Some(Watched { tap: Arc::clone(workers.tap()), origin: workers.origin() })
    }

    fn illness(&self) -> Option<String> {
        match self.workers.upgrade() {
            Some(workers) if workers.are_running() => None,
            Some(_) => Some("a worker has ended; the log says why".to_owned()),
            None => Some("stopping".to_owned()),
        }
    }

    fn programming(&self) -> Programming {
        self.reloads.programming()
    }

    fn is_eligible(&self) -> bool {
        let origin = self.subject.known.current();
        !origin.state.nodes.get(&origin.settings.node).is_some_and(|node| node.is_leaving)
    }
}

impl WorkerReadings {
    fn traffic(&self) -> Vec<Sample> {
        let per_side = |name, help, read: fn(&SideCounters) -> u64| {
            let sample = |side: &str, value| Sample {
                name,
                help,
                kind: SampleKind::Counter,
                labels: vec![("side", side.to_owned())],
                value,
            };
            [
                sample("overlay", self.sum(|all| read(&all.overlay))),
                sample("underlay", self.sum(|all| read(&all.underlay))),
            ]
        };
        [
            per_side("windlass_received_packets_total", RECEIVED, |side| side.received.get()),
            per_side("windlass_received_bytes_total", RECEIVED_BYTES, |side| side.received_bytes.get()),
            per_side("windlass_sent_packets_total", SENT, |side| side.sent.get()),
            per_side("windlass_sent_bytes_total", SENT_BYTES, |side| side.sent_bytes.get()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl WorkerReadings {
    fn connection_samples(&self) -> Vec<Sample> {
        let census = self.census();
        let all = CLASSES.into_iter().map(|(protocol, state)| Sample {
            name: "windlass_connections",
            help: CONNECTIONS,
            kind: SampleKind::Gauge,
            labels: vec![("protocol", protocol.to_owned()), ("state", state.to_owned())],
            value: census.get(&(protocol, state)).copied().unwrap_or(0),
        });
        all.collect()
    }

    fn census(&self) -> Census {
        let mut known = lock(&self.census);
        if let Some((at, census)) = &*known
            && at.elapsed() < CENSUS_EVERY
        {
            return census.clone();
        }
        let mut census = Census::new();
        self.connections.visit(|connection| {
            *census.entry(class(connection)).or_default() += 1;
            true
        });
        *known = Some((Instant::now(), census.clone()));
        census
    }

    fn table_samples(&self) -> Vec<Sample> {
        let tables = self.subject.snapshots.current();
        let of = |(table, entries): (&str, usize)| Sample {
            name: "windlass_table_entries",
            help: "Entries of the forwarding tables.",
            kind: SampleKind::Gauge,
            labels: vec![("table", table.to_owned())],
            value: u64::try_from(entries).unwrap_or(u64::MAX),
        };
        let entries = [
            ("fdb", tables.fdb().len()),
            ("neighbors", tables.neighbors().len()),
            ("routes", tables.routes().len()),
            ("services", tables.services().len()),
            ("backends", tables.services().backends()),
            ("segments", tables.segments().len()),
            ("stations", tables.segments().iter().map(|(_, segment)| segment.stations().count()).sum()),
        ];
        entries.into_iter().map(of).collect()
    }

    fn reload_samples(&self) -> Vec<Sample> {
        let figures = self.reloads.figures();
        let of = |(result, value): (&str, u64)| Sample {
            name: "windlass_reloads_total",
            help: "Changes of the cluster's objects, by what became of them.",
            kind: SampleKind::Counter,
            labels: vec![("result", result.to_owned())],
            value,
        };
        let mut samples: Vec<_> =
            [("success", figures.successes), ("failure", figures.failures)].into_iter().map(of).collect();
        let since = figures.last_success.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (name, at) = ("windlass_reload_last_success_timestamp_seconds", since.as_secs());
        samples.push(plain(name, LAST_SUCCESS, SampleKind::Gauge, at));
        let name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
        samples.push(plain(name, LAST_SUCCESS, SampleKind::Gauge, at));
        let duration = |name, help, took: Duration| {
            let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            plain(name, help, SampleKind::Nanoseconds, nanoseconds)
        };
        samples.push(duration("windlass_reload_duration_seconds", DURATION, figures.took));
        samples.extend(figures.staleness.iter().map(|(kind, staleness)| Sample {
            labels: vec![("kind", kind.label())],
            ..duration("windlass_watch_staleness_seconds", STALENESS, *staleness)
        }));
        let (services, endpoints) = figures.changes;
        let name = "kubeproxy_sync_proxy_rules_service_changes_total";
        samples.push(plain(name, SERVICE_CHANGES, SampleKind::Counter, services));
        let name = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
        samples.push(plain(name, ENDPOINT_CHANGES, SampleKind::Counter, endpoints));
        samples.extend(figures.syncs.samples("kubeproxy_sync_proxy_rules_duration_seconds", SYNCS));
        let name = "kubeproxy_network_programming_duration_seconds";
        samples.extend(figures.programming.samples(name, PROGRAMMING));
        samples
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plain(name: &'static str, help: &'static str, kind: SampleKind, value: u64) -> Sample {
    Sample { name, help, kind, labels: Vec::new(), value }
}

const RECEIVED: &str = "Wire-size packets received.";
const RECEIVED_BYTES: &str = "Bytes received.";
const SENT: &str = "Wire-size packets sent.";
const SENT_BYTES: &str = "Bytes sent.";
const GENERATED: &str = "Packets the engine made itself: ICMP errors, resets, fragments.";
const HITS: &str = "Packets decided by the flow cache.";
const MISSES: &str = "Packets decided by the slow path.";
const RESERVED: &str = "Packets accepted although reserved VXLAN bits were set.";
const UNACCOUNTED: &str = "How far received + generated is from sent + dropped; 0 but for packets under way.";
const ANSWERED: &str = "ARP and ND questions of L2 segments that were answered here, not flooded.";
const REFUSED: &str = "Frames whose source was not learned: its VTEP has as many stations as it may.";
const SUPPRESSED: &str = "ICMP errors and resets not sent because of the rate limit.";
const CONNECTIONS: &str = "Translated connections by protocol and state, counted at most every 10 s.";
const STALENESS: &str = "How long ago a kind of object was last heard of, by event or bookmark.";
const SERVICE_CHANGES: &str = "Changes of Services that were applied.";
const ENDPOINT_CHANGES: &str = "Changes of EndpointSlices that were applied.";
const SYNCS: &str = "How long each change took that was applied: reading, compiling and publishing.";
const PROGRAMMING: &str =
    "From what an EndpointSlice was changed for, as its annotation says, until all workers have it.";
const LAST_SUCCESS: &str = "When the cluster's objects were applied last, in seconds since 1970.";
const DURATION: &str = "How long the last reload took that was applied: reading, compiling and publishing.";
